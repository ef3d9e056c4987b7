"""Host time of transformers' prepare_next_batch when all requests decode, with and without kvarena.

Only the host counts, so that the model is a small one. Without kvarena it makes read and write
indices. With kvarena the step has block tables, which are made when the forward begins. That time
is a column of its own.
"""

import statistics
import time

import batching
import models
import torch
from transformers import Qwen2Config

import kvarena.transformers as ours

STEPS = 40
GOAL = 0.2  # of stock's time


class Timed:
    """A pool of kvarena whose steps say how long the host took to begin them."""

    def __init__(self, kv):
        self.kv, self.seconds = kv, []

    def __getattr__(self, name):
        return getattr(self.kv, name)

    def step(self, *given, **named):
        return Begun(self.kv.step(*given, **named), self.seconds)

    def replay(self, *given, **named):
        return Begun(self.kv.replay(*given, **named), self.seconds)


class Begun:
    """A step that adds the time of its __enter__ to a list."""

    def __init__(self, step, seconds):
        self.step, self.seconds = step, seconds

    def __getattr__(self, name):
        return getattr(self.step, name)

    def __enter__(self):
        begin = time.perf_counter()
        entered = self.step.__enter__()
        self.seconds.append(time.perf_counter() - begin)
        return entered

    def __exit__(self, *error):
        return self.step.__exit__(*error)


def fill(manager, load):
    """Gives the requests to the manager and prefills them. Its thread is not started."""
    processor = manager.batch_processor = manager._create_batch_processor()
    manager.add_requests(inputs=load.prompts, max_new_tokens=load.new_tokens)
    decoding = 0
    while decoding < len(load):
        if not processor.prepare_next_batch():
            raise RuntimeError("no batch could be prepared")
        decoding = sum(
            state.has_new_token for state in processor.inputs_and_outputs.requests_in_batch
        )
        processor._generation_step(manager.model)
        processor.update_batch()
    return processor


def times_of(model, load, device):
    """Medians in microseconds: of prepare_next_batch, and of the beginning of a step of kvarena."""
    manager = model.init_continuous_batching(
        generation_config=batching.generation(load),
        continuous_batching_config=batching.settings(
            load,
            use_async_batching=False,
            **(batching.sizes(load, max_batch_tokens=2048) if device == "cpu" else {}),
        ),
    )
    processor = fill(manager, load)
    steps = Timed(processor.cache.kv) if hasattr(processor.cache, "kv") else None
    if steps is not None:
        processor.cache.kv = steps
    prepared = []
    for _ in range(STEPS):
        if device != "cpu":
            torch.cuda.synchronize()
        begin = time.perf_counter()
        processor.prepare_next_batch()
        prepared.append(time.perf_counter() - begin)
        processor._generation_step(model)
        processor.update_batch()
    begun = 1e6 * statistics.median(steps.seconds[-STEPS:]) if steps is not None else None
    processor.cache.free_all_requests()
    return 1e6 * statistics.median(prepared), begun


def measure(report, options):
    config = Qwen2Config(**models.COMMON, **models.TINY, num_key_value_heads=2)
    model = models.build(config, options.device)
    load = batching.Load(config, options.quick)
    load.new_tokens = STEPS + 8
    model.set_attn_implementation("sdpa")
    stock, _ = times_of(model, load, options.device)
    models.release()
    with ours.continuous_batching(model, num_blocks=load.blocks(), block_size=batching.BLOCK):
        mine, begun = times_of(model, load, options.device)
    report.row(
        f"{len(load)} decoding requests",
        stock_us=stock,
        kvarena_us=mine,
        ratio=mine / stock,
        step_begin_us=begun,
        with_it=(mine + begun) / stock,
        result="ok" if options.quick or mine <= GOAL * stock else "failed",
        note=f"goal: {GOAL} of stock, which makes indices for sdpa",
    )
