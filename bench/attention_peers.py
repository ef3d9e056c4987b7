#!/usr/bin/env python3
"""Prompts: kvarena beside cuDNN, measured in turn on one GPU.

    python3 bench/attention_peers.py build/release/tools/kvarena [ROW...]

Needs torch with CUDA (a wheel of PyPI) and the kvarena command; nothing else of the tree. kvarena
reads paged K and V (blocks of 16 tokens in random order); cuDNN, through torch's
scaled_dot_product_attention, reads contiguous K and V and is given the better of two layouts:
(batch, heads, tokens, dim) and (batch, tokens, heads, dim). Rows whose lengths differ are the sum of
single calls, because SDPA takes no lengths. Both run in CUDA graphs, without host time, over as many
copies of K and V as the 1 GB that kvarena's calls go round. For each row, runs of kvarena and of
cuDNN alternate; each figure is the median over the rounds, the ratio is that of the medians.

The first line is the rate of torch.matmul of 8192 x 8192 bf16 matrices in that minute, the measured
ceiling of the matrix units; each row's shares are of it. Rows that cuDNN cannot compute so (fp8 K
and V, tokens before the query tokens, windows, soft caps, mixed batches) are not measured.

Exit code 1: a row of kvarena is wrong, or slower than cuDNN; 2: it cannot be measured.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROTATED_BYTES = 10**9
MOST_COPIES = 64
ROUND_US = 8000.0  # of the calls of a graph
REPLAYS = 11  # of a graph in a round; the median counts


def fail(message):
    print(f"attention_peers: {message}", file=sys.stderr)
    sys.exit(2)


class Kvarena:
    """Runs of the kvarena command."""

    def __init__(self, program, device):
        self.command = [program, "--no-config", "bench", "attention", "--device", device]
        self.command += ["--replays", "15"]

    def rows(self, *options):
        """The rows of one run, as its JSON has them."""
        with tempfile.TemporaryDirectory() as folder:
            target = Path(folder) / "rows.json"
            line = [*self.command, *options, "--json", str(target)]
            done = subprocess.run(line, capture_output=True, text=True, check=False)
            if done.returncode not in (0, 1) or not target.is_file():
                fail(f"{' '.join(line)}: exit code {done.returncode}\n{done.stderr}")
            return json.loads(target.read_text(encoding="utf-8"))["rows"]


def lengths_of(row):
    return row.get("lengths") or [row["context"]] * row["batch"]


def is_comparable(row):
    """Whether SDPA computes the same: bf16 prompts of which every token is a query token."""
    queries = row.get("query_tokens") or [row["q_len"]] * row["batch"]
    return (
        row["dtype"] == "bf16"
        and queries == lengths_of(row)
        and row["window_tokens"] == 0
        and row["soft_cap"] == 0
    )


class Timer:
    """Medians of CUDA graphs of several calls."""

    def __init__(self, torch):
        self.torch = torch
        self.begin = torch.cuda.Event(enable_timing=True)
        self.end = torch.cuda.Event(enable_timing=True)

    def microseconds(self, work):
        self.begin.record()
        work()
        self.end.record()
        self.end.synchronize()
        return self.begin.elapsed_time(self.end) * 1e3

    def graph(self, calls):
        """A graph of `calls`, as many in turn as fit a round, and their number."""
        torch = self.torch
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # warm up outside the capture
            for call in calls[:3] * 2:
                call()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        one = min(self.microseconds(calls[0]) for _ in range(3))
        count = max(1, min(MOST_COPIES, int(ROUND_US / one)))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for index in range(count):
                calls[index % len(calls)]()
        return graph, count

    def median_us(self, graph, count):
        for _ in range(3):
            graph.replay()
        times = [self.microseconds(graph.replay) / count for _ in range(REPLAYS)]
        return statistics.median(times)


class Cudnn:
    """cuDNN's attention of one row, in graphs of both layouts."""

    def __init__(self, torch, timer, row):
        self.torch, self.timer, self.row = torch, timer, row
        lengths = lengths_of(row)
        is_uniform = len(set(lengths)) == 1
        # (batch, tokens) of each SDPA call
        self.parts = [(len(lengths), lengths[0])] if is_uniform else [(1, n) for n in lengths]
        copies = max(1, min(MOST_COPIES, -(-ROTATED_BYTES // row["kv_bytes"])))
        self.graphs, self.failures = {}, []
        self.calls = []  # own the tensors that the graphs read
        for layout in ("bhsd", "bshd"):
            try:
                calls = [self.call(layout) for _ in range(copies)]
                self.graphs[layout] = timer.graph(calls)
                self.calls.append(calls)
            except RuntimeError as error:
                self.failures.append(f"{layout}: {str(error).splitlines()[0]}")

    def tensor(self, layout, batch, tokens, heads):
        torch, dim = self.torch, self.row["head_dim"]
        shape = (batch, heads, tokens, dim) if layout == "bhsd" else (batch, tokens, heads, dim)
        data = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
        return data if layout == "bhsd" else data.transpose(1, 2)

    def call(self, layout):
        """All parts of the row over tensors of their own; q is shared by the copies."""
        from torch.nn.attention import SDPBackend, sdpa_kernel
        from torch.nn.functional import scaled_dot_product_attention

        heads, kv_heads = self.row["q_heads"], self.row["kv_heads"]
        queries = self.queries(layout, heads)
        keys = [[self.tensor(layout, b, n, kv_heads) for b, n in self.parts] for _ in range(2)]

        def attend():
            with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                for q, k, v in zip(queries, *keys):
                    scaled_dot_product_attention(
                        q, k, v, is_causal=True, enable_gqa=heads != kv_heads
                    )

        return attend

    def queries(self, layout, heads):
        made = self.__dict__.setdefault("made_queries", {})
        if layout not in made:
            made[layout] = [self.tensor(layout, b, n, heads) for b, n in self.parts]
        return made[layout]

    def microseconds(self):
        """The better layout's time, and its name."""
        times = {name: self.timer.median_us(*graph) for name, graph in self.graphs.items()}
        best = min(times, key=times.get)
        return times[best], best


def matmul_tflops(torch, timer):
    size = 8192
    a, b = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    out = torch.empty_like(a)
    graph = timer.graph([lambda: torch.matmul(a, b, out=out)])
    return 2 * size**3 / timer.median_us(*graph) / 1e6


def measure(torch, timer, kvarena, name, rounds):
    """Alternates runs of kvarena and cuDNN over one row. Returns the row, both times and more."""
    ours, theirs, layouts, is_correct = [], [], [], True
    row, cudnn = None, None

    def run_ours():
        nonlocal row, is_correct
        (row,) = kvarena.rows("--prefill", "--row", name)
        ours.append(row["us"])
        is_correct = is_correct and row["correct"]

    run_ours()
    cudnn = Cudnn(torch, timer, row)
    for _ in range(rounds):
        if cudnn.graphs:
            us, layout = cudnn.microseconds()
            theirs.append(us)
            layouts.append(layout)
        run_ours()
    return {
        "row": row,
        "kvarena_us": statistics.median(ours),
        "cudnn_us": statistics.median(theirs) if theirs else None,
        "layout": statistics.mode(layouts) if layouts else None,
        "failures": cudnn.failures,
        "is_correct": is_correct,
    }


HEADER = (
    f"{'row':<12} {'heads':<14} {'kvarena us':>11} {'TFLOP/s':>8} {'share':>7} "
    f"{'cuDNN us':>11} {'TFLOP/s':>8} {'layout':>7} {'ratio':>6}"
)


def line_of(found, ceiling):
    """One line of the table. The ratio is cuDNN's time divided by kvarena's: above 1 is faster."""
    row = found["row"]
    heads = f"{row['q_heads']}/{row['kv_heads']} D={row['head_dim']}"
    ours = row["flops"] / found["kvarena_us"] / 1e6
    text = (
        f"{row['name']:<12} {heads:<14} {found['kvarena_us']:>11.1f} {ours:>8.1f} "
        f"{100 * ours / ceiling:>5.1f} % "
    )
    if found["cudnn_us"] is None:
        text += f"{'-':>11} {'-':>8} {'-':>7} {'-':>6}  {'; '.join(found['failures'])}"
    else:
        theirs = row["flops"] / found["cudnn_us"] / 1e6
        ratio = found["cudnn_us"] / found["kvarena_us"]
        text += f"{found['cudnn_us']:>11.1f} {theirs:>8.1f} {found['layout']:>7} {ratio:>6.3f}"
    return text + ("" if found["is_correct"] else "  WRONG")


DEFAULT_ROWS = [
    "1x1k", "1x4k", "1x8k", "1x32k", "8x1k", "8x4k", "2x16k", "16x512", "64x256", "ragged",
    "d96-1x4k", "d64-4x4k", "64/8-1x8k", "d80-1x4k", "d192-1x4k", "d256-1x4k",
]  # fmt: skip


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kvarena", help="path of the kvarena command")
    parser.add_argument("rows", nargs="*", default=[], help="names of --prefill rows; none: all")
    parser.add_argument("--rounds", type=int, default=3, help="of kvarena and cuDNN in turn [3]")
    parser.add_argument("--device", default="cuda:0", help="kvarena's name of GPU 0 of torch")
    parser.add_argument("--json", help="a file for the figures")
    options = parser.parse_args()
    try:
        import torch
    except ImportError as error:
        fail(f"{error}; install a wheel of torch with CUDA")
    if not torch.cuda.is_available():
        fail("torch sees no CUDA device")
    torch.manual_seed(0)
    timer, kvarena = Timer(torch), Kvarena(options.kvarena, options.device)
    ceiling = matmul_tflops(torch, timer)
    cudnn_version = torch.backends.cudnn.version()
    print(
        f"{torch.cuda.get_device_name(0)}; torch {torch.__version__}, cuDNN {cudnn_version}; "
        f"matmul 8192^3 in bf16: {ceiling:.1f} TFLOP/s\n{HEADER}",
        flush=True,
    )
    all_found = []
    for name in options.rows or DEFAULT_ROWS:
        found = measure(torch, timer, kvarena, name, options.rounds)
        if not is_comparable(found["row"]):
            fail(f"row {name}: SDPA with cuDNN does not compute the same")
        all_found.append(found)
        print(line_of(found, ceiling), flush=True)
        torch.cuda.empty_cache()
    print(f"matmul 8192^3 at the end: {matmul_tflops(torch, timer):.1f} TFLOP/s")
    if options.json:
        document = {"matmul_tflop_per_s": ceiling, "cudnn": cudnn_version, "rows": all_found}
        Path(options.json).write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    is_good = all(
        found["is_correct"] and (found["cudnn_us"] or float("inf")) >= found["kvarena_us"]
        for found in all_found
    )
    sys.exit(0 if is_good else 1)


if __name__ == "__main__":
    main()
