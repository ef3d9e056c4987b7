"""What calls from Python cost on the host: one call, and a step of many sequences.

Beside it, the same step of nano-vllm: its BlockManager for each sequence, and the lists that its
model runner makes of slots, lengths and block tables. nano-vllm itself, which needs a GPU, is not
imported.
"""

import importlib.util
import random
import statistics
import sys
import time
import types

import kvarena

SEQUENCES = 256
REPEATS = 200


def microseconds(call, repeats=REPEATS, before=None):
    """The median time of a call."""
    times = []
    for _ in range(repeats):
        if before is not None:
            before()
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return 1e6 * statistics.median(times)


def nanoseconds_of(call, count=20_000):
    def many():
        for _ in range(count):
            call()

    def empty():
        for _ in range(count):
            pass

    return 1000 * (microseconds(many, 15) - microseconds(empty, 15)) / count


def lengths():
    draw = random.Random(0)
    return [draw.randint(100, 1024) for _ in range(SEQUENCES)]


class Steps:
    """Decode steps of sequences on a host device. Nothing is written: the smallest layer."""

    def __init__(self):
        options = kvarena.CacheOptions(
            num_layers=1,
            num_kv_heads=1,
            head_dim=1,
            num_q_heads=1,
            num_blocks=SEQUENCES * 128,
            max_step_tokens=SEQUENCES * 1024,
        )
        self.cache = kvarena.Cache(kvarena.Device("cpu"), options)
        self.sequences = [self.cache.create_sequence() for _ in range(SEQUENCES)]
        with self.cache.step(list(zip(self.sequences, lengths(), strict=True))):
            pass

    def with_tuples(self):
        with self.cache.step([(sequence, 1) for sequence in self.sequences]):
            pass

    def with_sequences(self):
        with self.cache.step(self.sequences):
            pass


def nano_modules():
    """nano-vllm's block manager and sequence, without what its package imports for a GPU."""
    found = importlib.util.find_spec("nanovllm")
    if found is None:
        raise ModuleNotFoundError("nanovllm", name="nanovllm")
    for name, folder in (("nanovllm", ""), ("nanovllm.engine", "/engine")):
        module = types.ModuleType(name)
        module.__path__ = [path + folder for path in found.submodule_search_locations]
        sys.modules[name] = module
    from nanovllm.engine.block_manager import BlockManager
    from nanovllm.engine.sequence import Sequence

    return BlockManager, Sequence


class NanoSteps:
    """The same decode steps in nano-vllm, with its blocks of 256 tokens."""

    def __init__(self):
        manager, sequence = nano_modules()
        self.manager = manager(SEQUENCES * 16, 256)
        draw = random.Random(1)
        self.sequences = [sequence([draw.randrange(10000) for _ in range(n)]) for n in lengths()]
        for one in self.sequences:
            if hasattr(self.manager, "hash_blocks"):  # upstream's later version
                self.manager.allocate(one, 0)
            else:
                self.manager.allocate(one)

    def append(self):
        for one in self.sequences:
            one.append_token(7)

    def step(self):
        lengths, slots = [], []
        for one in self.sequences:
            self.manager.can_append(one)
            self.manager.may_append(one)
        for one in self.sequences:
            lengths.append(len(one))
            slots.append(one.block_table[-1] * 256 + one.last_block_num_tokens - 1)
        longest = max(len(one.block_table) for one in self.sequences)
        rows = [one.block_table + [-1] * (longest - len(one.block_table)) for one in self.sequences]
        return lengths, slots, rows


def measure(report, options):
    steps = Steps()
    sequence = steps.sequences[0]
    report.row("kvarena.now_ns()", ns=nanoseconds_of(kvarena.now_ns))
    report.row("sequence.length", ns=nanoseconds_of(lambda: sequence.length))
    report.row("an empty Python function", ns=nanoseconds_of(lambda: None))
    mine = microseconds(steps.with_sequences)
    report.row(f"step of {SEQUENCES}: sequences", us=mine)
    report.row(f"step of {SEQUENCES}: tuples made for it", us=microseconds(steps.with_tuples))
    try:
        nano = NanoSteps()
    except ModuleNotFoundError as error:
        report.skip(f"{error.name} is not installed", "nano-vllm")
        return
    theirs = microseconds(nano.step, before=nano.append)
    report.row(
        f"step of {SEQUENCES}: nano-vllm",
        us=theirs,
        kvarena_of_it=mine / theirs,
        note="can_append, may_append, lists of slots, lengths and block tables",
    )
