"""Chats of one system prompt: new tokens a second, with shared prefixes and without.

transformers' batching shares them on kvarena alone, nano-vllm stock and on kvarena.
"""

import statistics
import subprocess
import tempfile

import batching
import models
import nano
import transformers

import kvarena.transformers as ours

RUNS = 2


class Chats(batching.Load):
    """Requests that begin with the same tokens, and go on with their own."""

    def __init__(self, config, quick):
        super().__init__(config, quick)
        count, system, own = (16, 64, 24) if quick else (256, 1024, 128)
        self.new_tokens = 8 if quick else 64
        beginning = models.prompts([system], config.vocab_size)[0]
        self.prompts = [
            beginning + own for own in models.prompts([own] * count, config.vocab_size)
        ]
        self.longest = system + own


def measure_with(report, case, model, chats, before=None):
    """Serves the chats, with shared prefixes when it is given what it was `before`.

    Returns new tokens a second and the tokens, or None.
    """
    shares = before is not None
    pool = {
        "num_blocks": chats.blocks(),
        "block_size": batching.BLOCK,
        "prefix_cache": shares,
    }
    try:
        with ours.continuous_batching(model, **pool) as context:
            times, tokens = batching.timed_runs(report, model, chats, RUNS, 0)
        (cache,) = context.caches
        found = cache.kv.prefix_stats()
        cache.kv.check()
        cache.kv.close()
    except Exception as error:
        report.row(case, result="failed", note=batching.short(error))
        return None
    note = ""
    if shares:
        same = sum(a[0] == b[0] for a, b in zip(before[1], tokens, strict=True))
        note = f"first tokens equal: {same} of {len(chats)}"
    rate = len(chats) * chats.new_tokens / statistics.median(times)
    report.row(
        case,
        tokens_a_second=rate,
        median_s=statistics.median(times),
        runs=len(times),
        cached_share=found.hit_tokens / found.query_tokens
        if found.query_tokens
        else 0.0,
        ratio=rate / before[0] if shares else None,
        result="ok",
        note=note,
    )
    return rate, tokens


def measure_nano(report, options):
    case = "nano-vllm {}"
    kinds = nano.kinds_to_serve(report, options, case)
    if not kinds:
        return
    with tempfile.TemporaryDirectory() as folder:
        nano.save_model(folder, options.device, options.quick)
        for kind in kinds:
            try:
                found = nano.run(kind, folder, report, options, "chats")
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                note = str(error).split("\n")[0][-200:]
                report.row(case.format(kind), result="failed", note=note)
                continue
            for name, seconds in (
                ("each for itself", found["apart_s"]),
                ("shared prefixes", found["shared_s"]),
            ):
                shares = name == "shared prefixes"
                report.row(
                    f"{case.format(kind)} {name}",
                    tokens_a_second=found["tokens"] / seconds,
                    median_s=seconds,
                    runs=nano.RUNS,
                    cached_share=found["cached_share"] if shares else 0.0,
                    ratio=found["apart_s"] / seconds if shares else None,
                    result="ok",
                )


def measure(report, options):
    for name, config in list(models.configs(options).items())[:1]:
        measure_batching(report, options, name, config)
        models.release()
    if not options.model or any(part in "nano-vllm" for part in options.model):
        measure_nano(report, options)


def measure_batching(report, options, name, config):
    if not transformers.__version__.startswith("5.23."):
        report.skip(f"transformers is {transformers.__version__}, and not 5.23")
        return
    chats = Chats(config, options.quick)
    model = models.build(config, options.device)
    before = measure_with(report, f"{name} each for itself", model, chats)
    models.release()
    if before is not None:
        measure_with(report, f"{name} shared prefixes", model, chats, before)
