#!/usr/bin/env python3
"""The roofline clock beside a real run of vLLM: figures and curves of docs/explanation/capacity.md.

usage: vllm_run_comparison.py KVARENA DATA_DIR [--svg FILE] [OPTION...]

KVARENA is the command, DATA_DIR the folder with vllm_rtx4090_llama31_8b_*. Further options go to
`kvarena replay`, for example --efficiency-bandwidth 0.7 or --preempted drop.
"""

import csv
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

BLOCKS = 2587  # of the run's 2,588, less the engine's null block
PANELS = (  # column of the run, of the replay, title, highest value
    ("kv_cache_pct", "occupancy", "blocks in use, %", 100),
    ("running", "running", "running", 50),
    ("waiting", "waiting", "waiting", 250),
)


def replay(program, data, options):
    """The replay's series at every second, the times of its requests, and its report."""
    with tempfile.TemporaryDirectory() as folder:
        timeline, times = Path(folder, "timeline.csv"), Path(folder, "times.csv")
        defaults = {
            "--clock": "roofline",
            "--gpu": "RTX-4090",
            "--model": "Llama-3.1-8B",
            "--blocks": str(BLOCKS),
            "--watermark": "0",
            "--max-batched-tokens": "2048",
            "--max-context": "32768",
            "--preempted": "keep",
        }
        command = [program, "--no-config", "replay", f"{data}_requests.jsonl"] + options
        for name, value in defaults.items():
            command += [] if name in options else [name, value]
        command += ["--timeline", timeline, "--request-times", times, "--json", "-", "--quiet"]
        report = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
        with open(timeline, encoding="utf-8") as file:
            rows = [{k: float(v) for k, v in row.items()} for row in csv.DictReader(file)]
        with open(times, encoding="utf-8") as file:
            started = [float(row["started_s"]) for row in csv.DictReader(file)]
    series = []
    at = 0
    for second in range(int(rows[-1]["time_s"]) + 1):  # between two rows the last one holds
        while at + 1 < len(rows) and rows[at + 1]["time_s"] <= second:
            at += 1
        series.append({**rows[at], "occupancy": 100 * rows[at]["blocks"] / BLOCKS})
    return series, started, report


def measured(data):
    """The run's series by second, and its requests."""
    with open(f"{data}_timeseries.csv", encoding="utf-8") as file:
        rows = [{k: float(v) for k, v in row.items()} for row in csv.DictReader(file)]
    with open(f"{data}_requests.jsonl", encoding="utf-8") as file:
        requests = [json.loads(line) for line in file]
    return {round(row["t"]): row for row in rows}, requests


def print_figures(series, started, report, ticks, requests):
    """One line a figure: of the run, of the replay."""

    def line(name, real, replayed):
        print(f"{name:<34}{real:>10.2f}{replayed:>10.2f}")

    span = range(5, 166)
    line(
        "mean occupancy, 5-165 s, %",
        statistics.mean(ticks[t]["kv_cache_pct"] for t in span),
        statistics.mean(series[min(t, len(series) - 1)]["occupancy"] for t in span),
    )
    for name in ("running", "waiting"):
        peak = max(row[name] for row in series)
        line(f"peak {name}", max(row[name] for row in ticks.values()), peak)
    end = max(request["last_token_ms"] for request in requests) / 1e3
    line("end, s", end, report["virtual_us"] / 1e6)
    late = [s - r["scheduled_ms"] / 1e3 for s, r in zip(started, requests)]
    apart = [abs(series[min(t, len(series) - 1)]["running"] - ticks[t]["running"]) for t in ticks]
    print(f"median error of scheduled_ms: {1e3 * statistics.median(map(abs, late)):.0f} ms")
    print(f"median error of running: {statistics.median(apart):g}")
    print(
        f"{report['preemptions']} preemptions, {report['recomputed_tokens']} tokens lost, "
        f"{report['steps']} steps"
    )


def curve(points, highest, width, height):
    """Points of an SVG polyline."""
    return " ".join(
        f"{width * t / 190:.1f},{height - height * min(v, highest) / highest:.1f}" for t, v in points
    )


def draw(series, ticks, path):
    """Three panels, the run in grey, the replay in blue."""
    width, height, left, gap = 640, 130, 44, 34
    total = len(PANELS) * (height + gap) + 24
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width + left + 10} {total}" '
        'font-family="sans-serif" font-size="11">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for number, (real, replayed, title, highest) in enumerate(PANELS):
        top = 20 + number * (height + gap)
        out.append(f'<g transform="translate({left},{top})">')
        out.append(f'<text y="-6">{title}</text>')
        for part in range(0, 5):
            y = height * part / 4
            out.append(f'<path d="M0 {y}H{width}" stroke="#ddd"/>')
            value = highest * (4 - part) / 4
            out.append(f'<text x="-6" y="{y + 4}" text-anchor="end">{value:g}</text>')
        for second in range(0, 181, 30):
            x = width * second / 190
            out.append(f'<text x="{x:.1f}" y="{height + 13}" text-anchor="middle">{second} s</text>')
        for points, colour in (
            ([(t, row[real]) for t, row in sorted(ticks.items())], "#888"),
            ([(t, row[replayed]) for t, row in enumerate(series) if t > 0], "#06c"),
        ):
            line = curve(points, highest, width, height)
            out.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        out.append("</g>")
    out.append(f'<text x="{left + 400}" y="14" fill="#888">vLLM 0.19, RTX 4090</text>')
    out.append(f'<text x="{left + 530}" y="14" fill="#06c">kvarena replay</text>')
    out.append("</svg>\n")
    Path(path).write_text("\n".join(out), encoding="utf-8")


def main():
    arguments = sys.argv[1:]
    if len(arguments) < 2:
        sys.exit(__doc__)
    program, folder, *options = arguments
    svg = None
    if "--svg" in options:
        at = options.index("--svg")
        svg = options[at + 1]
        del options[at : at + 2]
    data = str(Path(folder, "vllm_rtx4090_llama31_8b"))
    series, started, report = replay(program, data, options)
    ticks, requests = measured(data)
    print_figures(series, started, report, ticks, requests)
    if svg is not None:
        draw(series, ticks, svg)


if __name__ == "__main__":
    main()
