"""Rows of a table that is printed while it grows, and kept as lines of JSON."""

import json
import time


class Report:
    """What one part says. Not thread-safe."""

    def __init__(self, path, part, seconds):
        self.path, self.part = path, part
        self.end = time.monotonic() + seconds
        self.columns = None

    @property
    def left(self):
        """Seconds that the part may still take."""
        return self.end - time.monotonic()

    def row(self, case, **fields):
        """Prints a row and keeps it. A first row, or one with other columns, has a heading."""
        columns = [name for name in fields if name != "note"]
        if columns != self.columns:
            self.columns = columns
            heads = "".join(f"{name.replace('_', ' '):>17}" for name in columns)
            print(f"\n{self.part:<46}{heads}")
        cells = "".join(f"{text(fields[name]):>17}" for name in columns)
        print(f"{case:<46}{cells}  {fields.get('note', '')}".rstrip(), flush=True)
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps({"part": self.part, "case": case, **fields}) + "\n")

    def skip(self, reason, case="part"):
        """Says in one line that something was not measured."""
        print(f"{self.part}: {case} skipped: {reason}", flush=True)
        with open(self.path, "a", encoding="utf-8") as file:
            row = {"part": self.part, "case": case, "result": "skipped", "note": reason}
            file.write(json.dumps(row) + "\n")


def text(value):
    if isinstance(value, float):
        return f"{value:,.3g}" if abs(value) < 100 else f"{value:,.0f}"
    return "-" if value is None else str(value)
