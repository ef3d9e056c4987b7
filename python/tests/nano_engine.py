"""nano-vllm's engine for tests: its own scheduler, model and model runner, on the CPU too.

nano-vllm is written for CUDA alone. On the CPU its model runner is made without its constructor, and sees a
torch whose tensors are never pinned and are on the GPU already.
"""

import types

import torch
import transformers
from tokenizers import Tokenizer, models

import kvarena.nano_vllm

nanovllm = kvarena.nano_vllm.install()

from nanovllm.config import Config  # noqa: E402
from nanovllm.engine import model_runner  # noqa: E402
from nanovllm.engine.scheduler import Scheduler  # noqa: E402
from nanovllm.engine.sequence import Sequence  # noqa: E402
from nanovllm.utils.context import reset_context, set_context  # noqa: E402

IS_UPSTREAM = hasattr(Sequence([1]), "num_scheduled_tokens")
BLOCK = 256


def make_folder(folder):
    """Saves a small Qwen3 with random weights, and a tokenizer of numbers."""
    torch.manual_seed(1)
    config = transformers.Qwen3Config(
        vocab_size=4001,
        hidden_size=256,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=2048,
        initializer_range=0.1,
        tie_word_embeddings=False,
        bos_token_id=1,
        eos_token_id=1,
    )
    model = transformers.Qwen3ForCausalLM(config).to(torch.float32).eval()
    model.save_pretrained(folder)
    words = models.WordLevel({str(i): i for i in range(4001)}, unk_token="0")
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(words), eos_token="1"
    )
    tokenizer.save_pretrained(folder)


def dense_tokens(model, ids, count):
    """The greedy tokens of nano-vllm's own model with attention over dense K and V of one sequence.

    Another model is no reference in float32: nano-vllm's norms write to their input there.
    """
    stored = {}

    def attend(layer, q, k, v):
        before = stored.get(layer, (k[:0], v[:0]))
        keys, values = (torch.cat(pair) for pair in zip(before, (k, v), strict=True))
        stored[layer] = keys, values
        group = q.shape[1] // k.shape[1]
        q, keys, values = (t.transpose(0, 1) for t in (q, keys, values))
        return torch.nn.functional.scaled_dot_product_attention(
            q,
            keys.repeat_interleave(group, 0),
            values.repeat_interleave(group, 0),
            is_causal=q.shape[1] > 1,
            scale=layer.scale,
        ).transpose(0, 1)

    device = model.lm_head.weight.device
    paged, kvarena.nano_vllm.Attention.forward = kvarena.nano_vllm.Attention.forward, attend
    new, tokens, seen = list(ids), [], 0
    try:
        while len(tokens) < count:
            end = torch.tensor([0, len(new)], dtype=torch.int32, device=device)
            set_context(True, end, end, len(new), len(new), None, None, None)
            positions = torch.arange(seen, seen + len(new), device=device)
            with torch.inference_mode():
                hidden = model(torch.tensor(new, device=device), positions)
                new = [int(model.compute_logits(hidden)[-1].argmax())]
            seen = len(ids) + len(tokens)
            tokens += new
    finally:
        kvarena.nano_vllm.Attention.forward = paged
        reset_context()
    return tokens


class Torch(types.ModuleType):
    """torch without pinned memory."""

    def __getattr__(self, name):
        found = getattr(torch, name)
        if name not in ("tensor", "zeros"):
            return found
        return lambda *args, pin_memory=False, **named: found(*args, **named)


class CpuEngine:
    """What LLM does, on the CPU, with `num_blocks` blocks."""

    def __init__(self, folder, num_blocks, **options):
        torch._dynamo.config.disable = True
        if not torch.distributed.is_initialized():
            store = torch.distributed.HashStore()
            torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
        model_runner.torch = Torch("torch")
        torch.Tensor.cuda = lambda self, *args, **named: self
        self.config = config = Config(
            str(folder), max_model_len=1024, max_num_seqs=8, enforce_eager=True, **options
        )
        config.eos = 1
        runner = self.runner = model_runner.ModelRunner.__new__(model_runner.ModelRunner)
        runner.config, runner.block_size, runner.enforce_eager = config, BLOCK, True
        runner.world_size, runner.rank, runner.dtype = 1, 0, torch.float32
        runner.model = model_runner.Qwen3ForCausalLM(config.hf_config)
        model_runner.load_model(runner.model, str(folder))
        runner.sampler = model_runner.Sampler()
        if hasattr(runner, "_allocate_sample_buffers"):
            runner._allocate_sample_buffers()
        hf = config.hf_config
        shape = (2, hf.num_hidden_layers, num_blocks, BLOCK, hf.num_key_value_heads, hf.head_dim)
        runner.kv_cache = torch.full(shape, float("nan"))
        kvarena.nano_vllm.attach(runner)
        self.scheduler = Scheduler(config)
        self.pool = self.scheduler.block_manager.pool

    def generate(self, prompts, sampling):
        sequences = [Sequence(ids, options) for ids, options in zip(prompts, sampling, strict=True)]
        for sequence in sequences:
            self.scheduler.add(sequence)
        while not self.scheduler.is_finished():
            seqs, is_prefill = self.scheduler.schedule()
            with torch.inference_mode():
                ids = self.runner.run(seqs, is_prefill)
            self.scheduler.postprocess(seqs, ids, *([is_prefill] if IS_UPSTREAM else []))
            self.pool.check()
        return [sequence.completion_token_ids for sequence in sequences]

    def close(self):
        self.runner.kvarena.close()


class GpuEngine:
    """LLM itself, with CUDA graphs."""

    def __init__(self, folder, num_blocks, **options):
        count = kvarena.nano_vllm.Runtime.__init__

        def limited(runtime, layers, memory, config):
            blocks = memory[:, :, :num_blocks].contiguous()
            count(runtime, layers, blocks, config)

        kvarena.nano_vllm.Runtime.__init__ = limited
        try:
            self.llm = nanovllm.LLM(
                str(folder),
                max_model_len=1024,
                max_num_seqs=8,
                gpu_memory_utilization=0.3,
                **options,
            )
        finally:
            kvarena.nano_vllm.Runtime.__init__ = count
        self.scheduler, self.runner = self.llm.scheduler, self.llm.model_runner
        self.pool = self.scheduler.block_manager.pool

    def generate(self, prompts, sampling):
        outputs = self.llm.generate(prompts, sampling, use_tqdm=False)
        self.pool.check()
        return [output["token_ids"] for output in outputs]

    def close(self):
        self.llm.exit()
        # LLM asks for its end at the interpreter's end, too.
        import atexit

        atexit.unregister(self.llm.exit)


def make_engine(folder, num_blocks, **options):
    kind = GpuEngine if torch.cuda.is_available() else CpuEngine
    return kind(folder, num_blocks, **options)
