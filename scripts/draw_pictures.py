#!/usr/bin/env python3
"""Draws the pictures of docs/pictures that are made from data.

usage: draw_pictures.py                 draws them again
       draw_pictures.py --check         fails when one differs from what would be drawn
       draw_pictures.py --measure PATH  runs the kvarena command PATH for new data of plan and occupancy, then draws

rooms.svg is made from the includes of the tree, the others from the files beside them. blocks.svg and
step.svg are drawn by hand.
"""

import argparse
import csv
import json
import math
import re
import subprocess
import sys
import tempfile
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ROOT / "docs/pictures"
sys.path.insert(0, str(ROOT / "tests/tidy"))

import check_layers  # noqa: E402
import tree  # noqa: E402

INK, MUTED, LINE = "#1c2430", "#5a6675", "#dfe4ea"
BLUE, LIGHT_BLUE, ORANGE, GREY = "#2f6fde", "#8fb3f0", "#d9822b", "#e9edf2"

PLAN = ["plan", "--model", "Llama-3.1-8B", "--gpu", "L40S,H200-SXM", "--context", "8192"]
TRACE = "examples/traces/mooncake_conversation_excerpt.jsonl"
RUNS = {
    "8192": ["--blocks", "8192"],
    "5600": ["--blocks", "5600", "--reserve", "none"],
}


class Drawing:
    """An SVG with a white card behind it, so that it reads on light and dark pages."""

    def __init__(self, width, height, title):
        self.width, self.height, self.title = width, height, title
        self.parts = []

    def text(self, x, y, text, anchor="start", size=13, fill=INK, weight=""):
        bold = f' font-weight="{weight}"' if weight else ""
        self.parts.append(
            f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" font-size="{size}" fill="{fill}"{bold}>'
            f"{escape(text, quote=False)}</text>"
        )

    def box(self, x, y, width, height, fill, stroke="none", radius=0):
        self.parts.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="{radius}" '
            f'fill="{fill}" stroke="{stroke}"/>'
        )

    def path(self, commands, stroke=LINE, width=1.0, fill="none", dash=""):
        dashes = f' stroke-dasharray="{dash}"' if dash else ""
        self.parts.append(
            f'<path d="{commands}" stroke="{stroke}" stroke-width="{width:g}" fill="{fill}"{dashes}/>'
        )

    def svg(self):
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" '
            f'width="{self.width}" height="{self.height}" '
            'font-family="Helvetica, Arial, sans-serif" role="img">\n'
            f"<title>{escape(self.title)}</title>\n"
            f'<rect x="0.5" y="0.5" width="{self.width - 1}" height="{self.height - 1}" rx="8" '
            'fill="#ffffff" stroke="#c9d1db"/>\n'
        )
        return head + "\n".join(self.parts) + "\n</svg>\n"


# ---- rooms ---------------------------------------------------------------------------------------

PURPOSES = {
    "tools": "the kvarena command",
    "examples": "programs that use public headers only",
    "scenarios": "memory run to its limits",
    "replay": "an engine on a virtual clock",
    "verify": "content that can be compared",
    "trace": "request traces",
    "capacity": "models, memory arithmetic, plans",
    "health": "residency, accounts, pressure; HTTP",
    "cache": "KvCache, the object an engine holds",
    "step": "what a step needs on the device",
    "attention": "validation, schedule, launch",
    "kernels": "device code and the CPU reference",
    "blocktable": "sequences and their block tables",
    "allocator": "block ids, counts, accounts; the arena",
    "device": "memory, streams, events",
    "base": "errors, ids, layout arithmetic",
}


def edges():
    """(room, room that it includes) of the tree."""
    found = set()
    for path in tree.files(ROOT, tree.PRODUCT):
        source = check_layers.room_of(path)
        text = tree.read(ROOT, path)
        for match in re.finditer(r'^[ \t]*#[ \t]*include[ \t]*[<"]([^>"]+)[>"]', text, re.MULTILINE):
            target = check_layers.resolve(ROOT, path, match.group(1))
            room = target and check_layers.room_of(target)
            if room and room != source:
                found.add((source, room))
    return found


def draw_rooms():
    rooms = list(PURPOSES)
    included = [room for room in reversed(rooms) if room not in ("tools", "examples")]
    there = edges()
    row, left, top, column = 27, 396, 112, 25
    drawing = Drawing(780, top + row * len(rooms) + 42, "The rooms, and which includes which")
    drawing.text(20, 34, "Rooms", size=16, weight="bold")
    drawing.text(20, 56, "A dot: the room of the row", size=12, fill=MUTED)
    drawing.text(20, 72, "includes the room of the column.", size=12, fill=MUTED)
    for i, room in enumerate(included):
        x = left + i * column + column / 2
        drawing.parts.append(
            f'<text transform="translate({x + 4:g},{top - 10}) rotate(-55)" font-size="12" '
            f'fill="{INK}">{room}</text>'
        )
    for r, room in enumerate(rooms):
        y = top + r * row
        drawing.box(14, y + 1, 752 - 14, row - 2, GREY if r % 2 else "#f6f8fa", radius=3)
        drawing.text(42, y + 18, f"{int(check_layers.ROOMS[room])}", "end", 12, MUTED)
        drawing.text(52, y + 18, room, weight="bold")
        drawing.text(140, y + 18, PURPOSES[room], size=12, fill=MUTED)
        for i, other in enumerate(included):
            x = left + i * column + column / 2
            if other == room:
                drawing.box(x - 7, y + row / 2 - 1, 14, 2, "#b6bfca")
            elif (room, other) in there:
                drawing.parts.append(
                    f'<circle cx="{x:g}" cy="{y + row / 2:g}" r="5" fill="{BLUE}"/>'
                )
    drawing.text(
        20,
        drawing.height - 16,
        "A dash is the room itself. No dot is right of it: a room includes only rooms below it.",
        size=12,
        fill=MUTED,
    )
    return drawing


# ---- decode --------------------------------------------------------------------------------------

PEERS = (  # column, name, color
    ("flashinfer", "FlashInfer", "#d9822b"),
    ("cudnn", "cuDNN", "#3b8f5a"),
    ("flashattention3", "FlashAttention-3", "#8a4fbf"),
    ("xqa", "TensorRT-LLM XQA", "#b0413e"),
    ("vllm", "vLLM paged attention", "#6b7480"),
)
MOST = 8.0  # the highest ratio that has a place


def peer_mark(drawing, index, x, y, color):
    shapes = (
        f"M{x - 4:.1f} {y - 4:.1f}h8v8h-8z",
        f"M{x:.1f} {y - 5:.1f}l4.6 8.6h-9.2z",
        f"M{x:.1f} {y - 5:.1f}l5 5l-5 5l-5 -5z",
        f"M{x - 4:.1f} {y - 4:.1f}l8 8m0 -8l-8 8",
        f"M{x - 5:.1f} {y:.1f}h10m-5 -5v10",
    )
    drawing.path(shapes[index], stroke=color, width=1.7)


def draw_decode():
    with open(PICTURES / "decode_ratio.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    row, left, right, top = 21, 236, 744, 118
    drawing = Drawing(
        780, top + row * len(rows) + 60, "Decode attention by the time to read the same bytes"
    )

    def place(ratio):
        return left + (right - left) * math.log(min(ratio, MOST)) / math.log(MOST)

    drawing.text(20, 32, "Time of decode attention / time to read the same K and V", size=16, weight="bold")
    drawing.text(20, 50, "NVIDIA H200, blocks of 16 tokens; less is better, 1 is the limit of the memory", size=12, fill=MUTED)
    x = 20
    for i, (_, name, color) in enumerate((("kvarena", "kvarena", BLUE),) + PEERS):
        if i == 0:
            drawing.parts.append(f'<circle cx="{x + 6}" cy="73" r="5" fill="{BLUE}"/>')
        else:
            peer_mark(drawing, i - 1, x + 6, 73, color)
        drawing.text(x + 17, 77, name, size=12)
        x += 38 + 6.6 * len(name)
    bottom = top + row * len(rows)
    for tick in (1, 1.25, 1.5, 2, 3, 4, 6, 8):
        drawing.path(f"M{place(tick):.1f} {top - 4}V{bottom}", INK if tick == 1 else LINE)
        drawing.text(place(tick), top - 10, f"{tick:g}", "middle", 12, MUTED)
    heads = ""
    for r, values in enumerate(rows):
        y = top + r * row + row / 2
        if values["heads"] != heads:
            heads = values["heads"]
            if r:
                drawing.path(f"M20 {y - row / 2:g}H{right}", "#b6bfca")
            drawing.text(20, y + 4, heads.replace(", KV", ","), size=12, weight="bold")
        drawing.text(left - 12, y + 4, values["batch_x_context"], "end", 12)
        for i, (column, _, color) in enumerate(PEERS):
            if not values[column]:
                continue
            ratio = float(values[column])
            if ratio <= MOST:
                peer_mark(drawing, i, place(ratio), y, color)
            else:
                drawing.text(right + 4, y + 4, f"{ratio:.1f}", "start", 11, color)
        drawing.parts.append(
            f'<circle cx="{place(float(values["kvarena"])):.1f}" cy="{y:.1f}" r="5" fill="{BLUE}"/>'
        )
    drawing.text(20, bottom + 22, "Rows: query heads / KV heads, elements a head (D); batch x context in tokens. bf16; \"fp8\": K and V in fp8 e4m3.", size=12, fill=MUTED)
    drawing.text(20, bottom + 40, "kvarena and FlashInfer 2026-11-21, the others 2026-11-20 (and FlashInfer's fp8); the best setting of each.", size=12, fill=MUTED)
    return drawing


# ---- plan ----------------------------------------------------------------------------------------

PLAN_PARTS = (  # name, color, bytes of a plan
    ("weights", "#44546a", lambda p: p["weights_bytes"]),
    ("activations", ORANGE, lambda p: p["activation_bytes"]),
    ("overhead", "#f0b673", lambda p: p["overhead_bytes"]),
    ("KV cache", BLUE, lambda p: p["kv_cache_bytes"]),
    ("kept free (utilization)", GREY, lambda p: p["memory_bytes"] - p["total_bytes"]),
)


def draw_plan():
    plans = json.loads((PICTURES / "plan.json").read_text(encoding="utf-8"))["plans"]
    drawing = Drawing(780, 92 + 92 * len(plans) + 40, "What a plan does with a GPU's memory")
    drawing.text(20, 32, "Llama-3.1-8B at 8,192 tokens: where a GPU's memory goes", size=16, weight="bold")
    x = 20
    for name, color, _ in PLAN_PARTS:
        drawing.box(x, 52, 14, 14, color, "#b6bfca")
        drawing.text(x + 20, 64, name, size=12)
        x += 42 + 7 * len(name)
    largest = max(plan["memory_bytes"] for plan in plans)
    for i, plan in enumerate(plans):
        y = 106 + 92 * i
        gib = plan["memory_bytes"] / 2**30
        drawing.text(20, y, f"{plan['gpu']}, {gib:.1f} GiB", weight="bold")
        drawing.text(
            20 + 740,
            y,
            f"{plan['num_blocks']:,} blocks: {plan['max_batch']} sequences of {plan['context']:,} tokens",
            "end",
            fill=MUTED,
        )
        x = 20.0
        for name, color, size in PLAN_PARTS:
            width = 740 * size(plan) / largest
            drawing.box(x, y + 10, width, 34, color, "#ffffff")
            label = f"{size(plan) / 2**30:.1f}"
            if width > 30:
                dark = name in ("weights", "KV cache")
                drawing.text(x + width / 2, y + 32, label, "middle", 12, "#ffffff" if dark else INK)
            x += width
    drawing.text(20, drawing.height - 16, "Numbers are GiB. Made from: kvarena " + " ".join(PLAN), size=12, fill=MUTED)
    return drawing


# ---- occupancy -----------------------------------------------------------------------------------

def draw_occupancy():
    with open(PICTURES / "occupancy.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    drawing = Drawing(780, 438, "Blocks in use during a replay, in a pool that suffices and one that does not")
    left, right, top, bottom = 70, 756, 84, 352
    end = max(float(row["time_s"]) for row in rows)

    def across(seconds):
        return left + (right - left) * seconds / end

    def up(blocks):
        return bottom - (bottom - top) * blocks / 8192

    drawing.text(20, 32, "Blocks in use while 32 requests are served", size=16, weight="bold")
    drawing.text(20, 50, "Qwen2.5-0.5B, blocks of 16 tokens, virtual clock", size=12, fill=MUTED)
    for blocks in range(0, 8193, 2048):
        drawing.path(f"M{left} {up(blocks):.1f}H{right}")
        drawing.text(left - 8, up(blocks) + 4, f"{blocks:,}", "end", 12, MUTED)
    for seconds in range(0, int(end) + 1, 10):
        drawing.text(across(seconds), bottom + 18, f"{seconds} s", "middle", 12, MUTED)
    for run, color in (("8192", BLUE), ("5600", ORANGE)):
        mine = [row for row in rows if row["run"] == run]
        path, preemptions, marks = "", 0, []
        for i, row in enumerate(mine):
            x, y = across(float(row["time_s"])), up(int(row["blocks"]))
            path += f"M{x:.1f} {y:.1f}" if i == 0 else f"H{x:.1f}V{y:.1f}"
            if int(row["preemptions"]) > preemptions:
                preemptions = int(row["preemptions"])
                marks.append(x)
        drawing.path(path, color, 1.6)
        if run == "5600":
            drawing.path(f"M{left} {up(5600):.1f}H{right}", color, 1, dash="5 4")
        for x in marks:
            drawing.path(f"M{x:.1f} {up(5600) - 14:.1f}v10m-3 -4l3 4l3 -4", "#b0413e", 1.4)
    drawing.box(left + 10, bottom + 34, 18, 4, BLUE)
    drawing.text(left + 34, bottom + 41, "pool of 8,192 blocks, --reserve prompt", size=12)
    drawing.box(left + 290, bottom + 34, 18, 4, ORANGE)
    drawing.text(left + 314, bottom + 41, "pool of 5,600 blocks, --reserve none", size=12)
    drawing.path(f"M{left + 552} {bottom + 31}v10m-3 -4l3 4l3 -4", "#b0413e", 1.4)
    drawing.text(left + 562, bottom + 41, "preemption", size=12)
    drawing.text(20, 422, f"Made from: kvarena replay {TRACE}", size=12, fill=MUTED)
    return drawing


# ---- data ----------------------------------------------------------------------------------------

KEPT = (
    "gpu memory_bytes context weights_bytes activation_bytes overhead_bytes kv_cache_bytes total_bytes "
    "num_blocks max_batch"
).split()


def measure(program):
    """Runs the command and keeps what the pictures need."""

    def run(*arguments):
        command = [program, "--no-config", *arguments]
        return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout

    plans = json.loads(run(*PLAN, "--json", "-", "--quiet"))["plans"]
    kept = [{name: plan[name] for name in KEPT} for plan in plans]
    (PICTURES / "plan.json").write_text(
        json.dumps({"command": "kvarena " + " ".join(PLAN), "plans": kept}, indent=1) + "\n"
    )
    with open(PICTURES / "occupancy.csv", "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["run", "time_s", "blocks", "preemptions"])
        for name, options in RUNS.items():
            with tempfile.TemporaryDirectory() as folder:
                timeline = Path(folder, "timeline.csv")
                model = ["--model", "Qwen2.5-0.5B", "--attention", "off", "--timeline-ms", "200"]
                run("replay", TRACE, *model, *options, "--timeline", timeline, "--quiet")
                with open(timeline, encoding="utf-8") as rows:
                    for row in csv.DictReader(rows):
                        writer.writerow([name, row["time_s"], row["blocks"], row["preemptions"]])


DRAWINGS = {
    "rooms.svg": draw_rooms,
    "decode_ratio.svg": draw_decode,
    "plan.svg": draw_plan,
    "occupancy.svg": draw_occupancy,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--measure", type=Path, metavar="PATH")
    options = parser.parse_args()
    if options.measure:
        measure(options.measure.resolve())
    stale = 0
    for name, draw in DRAWINGS.items():
        path, svg = PICTURES / name, draw().svg()
        if options.check and (not path.is_file() or path.read_text(encoding="utf-8") != svg):
            print(f"docs/pictures/{name}:1: is not what its data give; run scripts/draw_pictures.py")
            stale += 1
        elif not options.check:
            path.write_text(svg, encoding="utf-8")
    sys.exit(1 if stale else 0)


if __name__ == "__main__":
    main()
