"""nano-vllm's own benchmark (its bench.py) with kvarena and without: new tokens a second.

Each runs in a process of its own. The model is Qwen3-0.6B with random weights; nano-vllm loads it
from a folder. The tokenizer knows four words, because prompts are token ids.
"""

import importlib.util
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SERVED = ("kvarena", "stock")
RUNS = 3


def save_model(folder, device, quick):
    """Writes what nano-vllm reads: config.json, weights and a tokenizer."""
    import models
    import transformers
    from tokenizers import Tokenizer, pre_tokenizers
    from tokenizers.models import WordLevel

    shape = models.TINY | {"num_key_value_heads": 2, "head_dim": 64} if quick else models.QWEN3_06B
    config = transformers.Qwen3Config(**models.COMMON | shape | {"eos_token_id": 2})
    model = models.build(config, device)
    model.generation_config = transformers.GenerationConfig()
    model.save_pretrained(folder)
    del model
    models.release()
    words = Tokenizer(WordLevel({"<unk>": 0, "Benchmark": 1, "<eos>": 2, ":": 3}, "<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, eos_token="<eos>", unk_token="<unk>"
    ).save_pretrained(folder)


def work(vocabulary, quick):
    """Prompts and numbers of new tokens, drawn as upstream's bench.py draws them."""
    random.seed(0)
    count, longest = (8, 128) if quick else (256, 1024)
    ids = min(10000, vocabulary - 1)
    drawn = random.randint
    prompts = [[drawn(0, ids) for _ in range(drawn(100, longest))] for _ in range(count)]
    return prompts, [drawn(100, longest) for _ in range(count)]


def start(kind, folder):
    """nano-vllm's LLM in this process, its sampling parameters, and the size of its vocabulary."""
    if kind == "kvarena":
        import kvarena.nano_vllm

        kvarena.nano_vllm.install()
    import transformers

    # transformers 5 gives a dictionary for what nano-vllm expects to be None.
    transformers.Qwen3Config.rope_scaling = None
    from nanovllm import LLM, SamplingParams

    config = json.loads((Path(folder) / "config.json").read_text())
    length = min(4096, config["max_position_embeddings"])
    llm = LLM(str(folder), enforce_eager=False, max_model_len=length)
    return llm, SamplingParams, config["vocab_size"]


def serve(kind, folder, quick):
    """Runs of the benchmark in this process. Returns tokens and the median of the seconds."""
    llm, SamplingParams, vocabulary = start(kind, folder)
    prompts, counts = work(vocabulary, quick)
    sampling = [SamplingParams(temperature=0.6, ignore_eos=True, max_tokens=n) for n in counts]
    llm.generate(["Benchmark: "], SamplingParams())
    # Upstream warms up no more. Each run has other prompts of the same lengths: nothing is compiled
    # later, and no prefix is found.
    times = []
    for number in range(1 + RUNS):
        others = [[(token + number) % vocabulary for token in prompt] for prompt in prompts]
        warm = [SamplingParams(max_tokens=4, ignore_eos=True)] * len(prompts)
        begin = time.perf_counter()
        outputs = llm.generate(others, sampling if number else warm, use_tqdm=False)
        times.append(time.perf_counter() - begin)
    if [len(output["token_ids"]) for output in outputs] != counts:
        raise RuntimeError("not all new tokens came back")
    return sum(counts), statistics.median(times[1:])


def chats(vocabulary, quick, seed, shared):
    """Prompts that begin with the same tokens and go on with their own, or have all tokens of their own."""
    count, system, own = (8, 512, 24) if quick else (256, 1024, 128)
    draw = random.Random(seed)

    def tokens(number):
        return [draw.randrange(min(10000, vocabulary - 1)) for _ in range(number)]

    beginning = tokens(system)
    return [(beginning if shared else tokens(system)) + tokens(own) for _ in range(count)]


def serve_chats(kind, folder, quick):
    """Chats in this process, in turn apart and with one system prompt, which is new in each run.

    Returns new tokens of a run, the median of the seconds of both, and of the tokens that kvarena was
    asked for, the part that was cached.
    """
    llm, SamplingParams, vocabulary = start(kind, folder)
    new_tokens = 8 if quick else 64
    sampling = SamplingParams(temperature=0.6, ignore_eos=True, max_tokens=new_tokens)
    pool = getattr(llm.scheduler.block_manager, "pool", None)
    times = {False: [], True: []}
    asked = cached = 0
    for number in range(2 * (1 + RUNS)):  # the first of both compiles
        shared = number % 2 == 1
        prompts = chats(vocabulary, quick, number, shared)
        before = pool.prefix_stats() if pool else None
        begin = time.perf_counter()
        outputs = llm.generate(prompts, [sampling] * len(prompts), use_tqdm=False)
        times[shared].append(time.perf_counter() - begin)
        if any(len(output["token_ids"]) != new_tokens for output in outputs):
            raise RuntimeError("not all new tokens came back")
        if pool and shared:
            after = pool.prefix_stats()
            asked += after.query_tokens - before.query_tokens
            cached += after.hit_tokens - before.hit_tokens
    return {
        "tokens": len(prompts) * new_tokens,
        "apart_s": statistics.median(times[False][1:]),
        "shared_s": statistics.median(times[True][1:]),
        "cached_share": cached / asked if asked else None,
    }


LOADS = {"bench": serve, "chats": serve_chats}


def run(kind, folder, report, options, load="bench"):
    """Runs a load in a process of its own. Returns what it measured."""
    path = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    if kind == "stock" and options.flash_attn_module:
        path.insert(0, options.flash_attn_module)
    target = Path(folder) / f"{kind}.json"
    command = [sys.executable, __file__, kind, folder, str(target), str(int(options.quick)), load]
    with open(Path(folder) / f"{kind}.log", "w+") as log:
        done = subprocess.run(
            command,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, path))},
            stdout=log,
            stderr=subprocess.STDOUT,
            timeout=max(1, report.left),
            check=False,
        )
        log.seek(0)
        last = [line for line in log.read().splitlines() if line.strip()][-1:]
    if done.returncode != 0 or not target.is_file():
        raise RuntimeError(f"exit code {done.returncode}: {last[0] if last else ''}"[:200])
    return json.loads(target.read_text())


def reason_to_skip(kind, options):
    """Why one of the two cannot run here, or None."""
    if importlib.util.find_spec("nanovllm") is None:
        return "nanovllm is not installed"
    if options.device == "cpu":
        return "nano-vllm needs a GPU"
    if kind == "kvarena" and importlib.util.find_spec("kvarena.nano_vllm") is None:
        return "this kvarena has no nano_vllm"
    if kind == "stock" and importlib.util.find_spec("flash_attn") is None:
        if not options.flash_attn_module:
            return "flash_attn is not installed, and --flash-attn-module is not given"
    return None


def kinds_to_serve(report, options, case="{}"):
    """Those that can run here; says why the others cannot."""
    kinds = []
    for kind in SERVED:
        reason = reason_to_skip(kind, options)
        if reason:
            report.skip(reason, case.format(kind))
        else:
            kinds.append(kind)
    return kinds


def measure(report, options):
    kinds = kinds_to_serve(report, options)
    if not kinds:
        return
    with tempfile.TemporaryDirectory() as folder:
        save_model(folder, options.device, options.quick)
        rates = {}
        for kind in kinds:
            try:
                tokens, seconds = run(kind, folder, report, options)
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                report.row(kind, result="failed", note=str(error).split("\n")[0][-200:])
                continue
            rates[kind] = tokens / seconds
            report.row(
                kind,
                tokens_a_second=rates[kind],
                seconds=seconds,
                kvarena_ratio=rates["kvarena"] / rates[kind] if "kvarena" in rates else None,
                result="ok",
            )


if __name__ == "__main__":
    found = LOADS[sys.argv[5]](sys.argv[1], sys.argv[2], sys.argv[4] == "1")
    Path(sys.argv[3]).write_text(json.dumps(found))
