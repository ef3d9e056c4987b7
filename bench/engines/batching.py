"""Continuous batching of many requests: new tokens a second, with kvarena and without."""

import contextlib
import dataclasses
import inspect
import random
import statistics
import time

import models
import transformers
from transformers import ContinuousBatchingConfig, GenerationConfig

import kvarena.transformers as ours

BLOCK = 16  # tokens
RUNS = 3


class Load:
    """The requests: prompts of uniform lengths, and the new tokens of each."""

    def __init__(self, config, quick):
        count, longest, self.new_tokens = (16, 96, 16) if quick else (256, 1024, 128)
        draw = random.Random(0)
        lengths = [draw.randint(min(100, longest // 2), longest) for _ in range(count)]
        self.prompts = models.prompts(lengths, config.vocab_size)
        self.longest = longest

    def __len__(self):
        return len(self.prompts)

    def blocks(self, size=BLOCK, spare=4):
        """Blocks that all requests need at the same time, and a part of them more."""
        needed = sum(-(-(len(p) + self.new_tokens) // size) for p in self.prompts)
        return needed + needed // spare + 1


def accepted(function, given):
    """Those of the named arguments that a function of this version of transformers has."""
    names = inspect.signature(function).parameters
    return {name: value for name, value in given.items() if name in names}


def sizes(load, max_batch_tokens):
    """Sizes of stock's cache. It keeps some blocks free before it takes more requests."""
    return {"num_blocks": load.blocks(256, spare=2), "max_batch_tokens": max_batch_tokens}


def settings(load, **more):
    fields = {field.name for field in dataclasses.fields(ContinuousBatchingConfig)}
    given = {"max_requests_per_batch": len(load), "auto_switch_to_flash": False, **more}
    return ContinuousBatchingConfig(**{k: v for k, v in given.items() if k in fields})


def generation(load):
    return GenerationConfig(
        max_new_tokens=load.new_tokens, do_sample=False, eos_token_id=-1, pad_token_id=0
    )


@contextlib.contextmanager
def serving(model, load):
    """A manager that runs, sized for the load."""
    begin = model.continuous_batching_context_manager
    # On a GPU stock sizes its cache by the free memory; on a host that would be most of its memory.
    limits = sizes(load, 512) if model.device.type == "cpu" else {}
    config = settings(load, **limits)
    given = {"generation_config": generation(load), "continuous_batching_config": config}
    with contextlib.suppress(ImportError):
        from transformers.generation.continuous_batching.utils import WorkloadHints

        given["workload_hints"] = WorkloadHints(load.longest, load.new_tokens, len(load))
    with begin(**accepted(begin, given)) as manager:
        yield manager


def serve(manager, prompts, new_tokens, report):
    """Sends requests and waits for all answers. Returns the seconds, and the tokens in order."""
    begin = time.perf_counter()
    names = manager.add_requests(inputs=prompts, max_new_tokens=new_tokens)
    done = {}
    while len(done) < len(names):
        if report.left < 3:
            for name in names:
                manager.cancel_request(name)
            raise TimeoutError(f"{len(done)} of {len(names)} requests ended in the part's time")
        result = manager.get_result(timeout=1)
        if result is None and not manager.is_running():
            raise RuntimeError("the generation thread ended")
        if result is not None and result.is_finished():
            if result.error:
                raise RuntimeError(result.error)
            done[result.request_id] = result.generated_tokens
    seconds = time.perf_counter() - begin
    tokens = [done[name] for name in names]
    if any(len(row) != new_tokens for row in tokens):
        raise RuntimeError(f"a request has not {new_tokens} new tokens")
    return seconds, tokens


def timed_runs(report, model, load, most, reserve):
    """Warms up, then serves up to `most` times and at least once, while there is time.

    Without graphs a part of the requests is enough to warm up.
    """
    times = []
    graphs = model.config._attn_implementation not in ("sdpa", "eager")
    with serving(model, load) as manager:
        serve(manager, load.prompts if graphs else load.prompts[:16], load.new_tokens // 16, report)
        while len(times) < most and (not times or report.left - reserve > 1.2 * times[-1]):
            seconds, tokens = serve(manager, load.prompts, load.new_tokens, report)
            times.append(seconds)
    return times, tokens


def flash_variants():
    """Flash attention that this version of transformers can import here, the newest first."""
    from transformers import utils

    found = []
    for version in (4, 3, 2):
        available = getattr(utils, f"is_flash_attn_{version}_available", None)
        with contextlib.suppress(Exception):
            if available is not None and available():
                found.append(f"flash_attention_{version}")
    return found


def short(error):
    return f"{type(error).__name__}: {error}".split("\n")[0][:160]


def row(report, case, load, times, base=None, note=""):
    rate = len(load) * load.new_tokens / statistics.median(times)
    report.row(
        case,
        tokens_a_second=rate,
        median_s=statistics.median(times),
        runs=len(times),
        kvarena_ratio=base / rate if base else None,
        result="ok",
        note=note,
    )
    return rate


def measure_kvarena(report, name, model, load, reserve):
    """Returns new tokens a second and the tokens, or None and None."""
    case = f"{name} kvarena"
    if not transformers.__version__.startswith("5.23."):
        report.skip(f"transformers is {transformers.__version__}, and not 5.23", case)
        return None, None
    try:
        pool = {"num_blocks": load.blocks(), "block_size": BLOCK}
        with ours.continuous_batching(model, **pool) as batching:
            times, tokens = timed_runs(report, model, load, RUNS, reserve)
        (cache,) = batching.caches
        cache.kv.check()
        cache.kv.close()
    except Exception as error:
        report.row(case, result="failed", note=short(error))
        return None, None
    return row(report, case, load, times), tokens


def measure_stock(report, name, model, load, reserve, attention, mine, expected):
    case = f"{name} stock, {attention}"
    if report.left - reserve < 5:
        report.skip("the part's time is used up", case)
        return
    try:
        model.set_attn_implementation(attention)
        times, tokens = timed_runs(report, model, load, RUNS, reserve)
    except Exception as error:  # that stock does not run here is no fault of kvarena
        report.skip(short(error), case)
        return
    note = f"transformers {transformers.__version__}"
    if expected:
        same = sum(a[0] == b[0] for a, b in zip(expected, tokens, strict=True))
        note += f"; first tokens equal: {same} of {len(load)}"
    row(report, case, load, times, mine, note)


def measure(report, options):
    pending = models.configs(options)
    for i, (name, config) in enumerate(pending.items()):
        load = Load(config, options.quick)
        model = models.build(config, options.device)
        later = len(pending) - i - 1
        reserve = report.left * later / (later + 1)
        mine, expected = measure_kvarena(report, name, model, load, reserve)
        models.release()
        for attention in options.stock_attention or [*flash_variants(), "sdpa"]:
            measure_stock(report, name, model, load, reserve, attention, mine, expected)
            models.release()
        del model
        models.release()
