"""nano-vllm on kvarena: its block manager on our pool, its attention on our kernels.

    import kvarena.nano_vllm

    kvarena.nano_vllm.install()  # before nanovllm is imported
    from nanovllm import LLM, SamplingParams

nano-vllm's scheduler, model runner, CUDA graphs and memory stay as they are. It allocates the pool, whose
bytes are read as kvarena's layout; flash-attn is not needed. A cached prefix outlives its last sequence: its
blocks are evictable, the oldest first, until they are needed.

Tested with nano-vllm-fork 20260210 and upstream's commit bb823b3. One GPU.
"""

from __future__ import annotations

import importlib
import os
import sys
import types
from typing import Any

import torch

import kvarena
from kvarena._torch import device_of

_ATTENTION = "nanovllm.layers.attention"


class Held:
    """The blocks of a sequence of nano-vllm, and where its prefix goes on."""

    def __init__(self, holder: int, found: kvarena.Adoption) -> None:
        self.holder = holder
        self.blocks, self.generations = found.blocks, found.generations
        self.position = found.position
        self.cached = len(found.blocks)


class BlockManager:
    """What both forms of nano-vllm's BlockManager do, on a kvarena.Pool that finds blocks by their tokens."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.pool = kvarena.Pool(
            num_blocks,
            name="nano-vllm",
            max_holders=num_blocks + 1,
            prefix_cache=True,
            block_size=block_size,
        )
        self.held: dict[int, Held] = {}

    @property
    def free_block_ids(self) -> range:
        """As many as can be had; nano-vllm asks for their number alone."""
        return range(self.pool.available())

    def begin(self, seq: Any, tokens: list[int]) -> Held:
        """The published blocks with which a sequence begins. One token at least is left to compute."""
        holder = self.pool.open_holder(owner=seq.seq_id, purpose="sequence")
        try:
            return Held(holder, self.pool.adopt(holder, tokens))
        except kvarena.Error:
            self.pool.close_holder(holder)
            raise

    def end(self, held: Held) -> None:
        """Gives all blocks back, the last first: the end of a prefix is evicted first."""
        self.pool.free(held.holder, held.blocks[::-1], held.generations[::-1])
        self.pool.close_holder(held.holder)

    def cached_blocks(self, seq: Any) -> int:
        """How many blocks a sequence would begin with, or -1 when the others cannot be had."""
        trial = self.begin(seq, seq.token_ids)
        fits = self.pool.available() >= seq.num_blocks - trial.cached
        self.end(trial)
        return trial.cached if fits else -1

    def take(self, seq: Any, most_cached: int | None = None) -> None:
        """Gives a sequence the blocks that it begins with, and new ones for the rest."""
        assert not seq.block_table
        most = None if most_cached is None else most_cached * self.block_size + 1
        held = self.begin(seq, seq.token_ids[:most])
        try:
            self.grow(held, seq.num_blocks - held.cached)
        except kvarena.Exhausted:
            self.end(held)
            raise
        self.held[seq.seq_id] = held
        seq.block_table.extend(held.blocks)
        seq.num_cached_tokens = held.cached * self.block_size

    def grow(self, held: Held, blocks: int) -> None:
        taken = self.pool.allocate(held.holder, blocks)
        held.blocks += taken.blocks
        held.generations += taken.generations

    def publish(self, seq: Any, end: int) -> None:
        """Makes the full blocks before block `end` of a sequence known to others."""
        held = self.held[seq.seq_id]
        first = held.position.blocks
        if end <= first:
            return
        try:
            self.register(held, seq, end)
        except kvarena.StaleHandle:  # an equal block of another sequence, before these, was evicted
            held.position, first = self.pool.begin_prefix(), 0
            self.register(held, seq, end)
        self.pool.publish(held.blocks[first:end], held.generations[first:end])

    def register(self, held: Held, seq: Any, end: int) -> None:
        first = held.position.blocks
        tokens = seq.token_ids[first * self.block_size : end * self.block_size]
        self.pool.register(
            held.position, tokens, held.blocks[first:end], held.generations[first:end]
        )

    def deallocate(self, seq: Any) -> None:
        """Gives all blocks of a sequence back."""
        held = self.held.pop(seq.seq_id, None)
        if held is None:  # nano-vllm's own manager does nothing either
            return
        self.end(held)
        seq.num_cached_tokens = 0
        seq.block_table.clear()

    def can_append(self, seq: Any) -> bool:
        return len(seq) % self.block_size != 1 or self.pool.available() >= 1

    def append(self, seq: Any) -> None:
        """Takes a block when the newest token is the first of one."""
        if len(seq) % self.block_size == 1:
            held = self.held[seq.seq_id]
            self.grow(held, 1)
            seq.block_table.append(held.blocks[-1])


class ForkBlockManager(BlockManager):
    """The form of nano-vllm-fork. What it publishes is written by the step that follows."""

    def can_allocate(self, seq: Any) -> bool:
        return self.cached_blocks(seq) >= 0

    def allocate(self, seq: Any) -> None:
        self.take(seq)
        self.publish(seq, len(seq) // self.block_size)

    def may_append(self, seq: Any) -> None:
        self.append(seq)
        if len(seq) % self.block_size == 0:
            self.publish(seq, len(seq) // self.block_size)


class UpstreamBlockManager(BlockManager):
    """The form of upstream, which publishes after a step and computes prompts in chunks."""

    def can_allocate(self, seq: Any) -> int:
        return self.cached_blocks(seq)

    def allocate(self, seq: Any, num_cached_blocks: int) -> None:
        self.take(seq, num_cached_blocks)

    def may_append(self, seq: Any) -> None:
        self.append(seq)

    def hash_blocks(self, seq: Any) -> None:
        first = seq.num_cached_tokens // self.block_size
        end = (seq.num_cached_tokens + seq.num_scheduled_tokens) // self.block_size
        if end > first:
            self.publish(seq, end)


class Runtime:
    """The kernels that the layers of a model share, and the arrays of the step that they run."""

    def __init__(self, layers: list[Attention], memory: torch.Tensor, config: Any) -> None:
        first = layers[0]
        self.memory, self.device = memory, device_of(memory.device)
        is_chunked = memory.is_cuda and memory.itemsize == 2 and first.head_dim % 16 == 0
        pool: dict[str, Any] = {
            "num_kv_heads": first.num_kv_heads,
            "num_q_heads": first.num_heads,
            "head_dim": first.head_dim,
            "dtype": memory.dtype,
            "block_size": config.kvcache_block_size,
            "tile_order": "chunked" if is_chunked else "rows",
        }
        layout = kvarena.CacheOptions(num_layers=len(layers), budget_bytes=memory.nbytes, **pool)
        layout.num_blocks = kvarena.pool_plan(layout).num_blocks
        layout.budget_bytes = 0
        self.num_blocks = layout.num_blocks
        rows = config.max_num_seqs + 1  # the fork takes two sequences at once
        self.kernels = kvarena.Kernels(
            self.device,
            kvarena.KernelsOptions(
                num_blocks=layout.num_blocks,
                max_rows=rows,
                max_q_tokens=max(config.max_num_batched_tokens, rows),
                **pool,
            ),
        )
        where = memory.device
        self.rows = torch.arange(rows, dtype=torch.int32, device=where)
        self.offsets = torch.arange(rows + 1, dtype=torch.int64, device=where)
        self.slots = self.offsets
        self.query_tokens: list[int] = []  # of the prompts' rows
        if memory.is_cuda:  # memory of the host is no matter of residency
            self.device.register(memory, purpose="kv_cache", description="nano-vllm's pool")
        for index, layer in enumerate(layers):
            view = kvarena.layer_view(self.device, layout, memory, index)
            layer.view = view._replace(
                key=torch.from_dlpack(view.key), value=torch.from_dlpack(view.value)
            )
            layer.is_first, layer.runtime = index == 0, self

    def begin(self, context: Any) -> None:
        """Schedules the step of nano-vllm's context. In a CUDA graph this is a part of the graph."""
        tables = context.block_tables
        if context.is_prefill:
            counts = self.query_tokens
            lengths = context.cu_seqlens_k.diff()
            q_offsets = context.cu_seqlens_q.long()
            slots = self.rows[: len(counts)]
        else:
            lengths = context.context_lens
            count = lengths.shape[0]
            counts = [1] * count
            q_offsets = self.offsets[: count + 1]
            slots = torch.where(
                lengths > 0, self.rows[:count], -1
            )  # a graph's rows without a sequence
        self.slots = context.slot_mapping.long()
        self.kernels.schedule(
            tables,
            lengths,
            q_offsets,
            row_slots=slots,
            row_offsets=self.offsets[: len(counts)] * tables.stride(0),
            query_tokens=counts,
        )

    def close(self) -> None:
        if self.memory.is_cuda:
            self.device.unregister(self.memory)
        self.kernels.close()


class Attention(torch.nn.Module):
    """nano-vllm's Attention: [tokens, heads, head_dim] each, on the blocks of its context."""

    def __init__(self, num_heads: int, head_dim: int, scale: float, num_kv_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.scale = scale
        self.num_kv_heads = num_kv_heads
        self.k_cache = self.v_cache = torch.tensor([])  # by these nano-vllm finds the layers
        self.runtime: Runtime | None = None
        self.view: kvarena.LayerView | None = None
        self.is_first = False

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        runtime = self.runtime
        if runtime is None:  # the warm-up, before there is a pool: memory matters, numbers do not
            return torch.zeros_like(q)
        assert self.view is not None
        if self.is_first:
            runtime.begin(importlib.import_module("nanovllm.utils.context").get_context())
        runtime.kernels.write(self.view, runtime.slots, k, v)
        return runtime.kernels.attend(self.view, q, scale=self.scale, overlap=True)


def attach(runner: Any) -> None:
    """Lays kvarena's pool over the memory that a model runner has allocated for K and V."""
    layers = [module for module in runner.model.modules() if isinstance(module, Attention)]
    runner.kvarena = Runtime(layers, runner.kv_cache, runner.config)
    runner.config.num_kvcache_blocks = runner.kvarena.num_blocks


def patch_runner(runner: Any) -> None:
    """Adds to three methods of nano-vllm's ModelRunner what kvarena needs to know."""
    allocate, prepare, leave = runner.allocate_kv_cache, runner.prepare_prefill, runner.exit

    def allocate_kv_cache(self: Any) -> None:
        allocate(self)
        attach(self)

    def prepare_prefill(self: Any, seqs: list[Any]) -> Any:
        prepared = prepare(self, seqs)
        if seqs[0].block_table:
            context = importlib.import_module("nanovllm.utils.context").get_context()
            if context.block_tables is None:
                context.block_tables = self.prepare_block_tables(seqs)
            self.kvarena.query_tokens = [
                getattr(seq, "num_scheduled_tokens", len(seq) - seq.num_cached_tokens)
                for seq in seqs
            ]
        return prepared

    def exit_runner(self: Any) -> None:
        torch.cuda.synchronize()
        self.kvarena.close()
        leave(self)

    runner.allocate_kv_cache = allocate_kv_cache
    runner.prepare_prefill = prepare_prefill
    runner.exit = exit_runner


def patch_config(config: Any) -> None:
    """Makes nano-vllm's Config refuse what is not supported, before processes are started."""
    check = config.__post_init__

    def post_init(self: Any) -> None:
        check(self)
        if self.tensor_parallel_size != 1:
            raise ValueError(
                f"tensor_parallel_size: {self.tensor_parallel_size}; accepted: 1 with kvarena"
            )

    config.__post_init__ = post_init


def patch_rope(qwen3: Any) -> None:
    """Lets nano-vllm-fork run with transformers 5, where rope_scaling is a dict that has rope_theta too."""
    stock = qwen3.get_rope

    def get_rope(*args: Any, base: float, rope_scaling: Any, **named: Any) -> Any:
        if isinstance(rope_scaling, dict) and rope_scaling.get("rope_type") == "default":
            base, rope_scaling = rope_scaling.get("rope_theta", base), None
        return stock(*args, base=base, rope_scaling=rope_scaling, **named)

    qwen3.get_rope = get_rope


def install(checkout: str | None = None) -> types.ModuleType:
    """Imports nano-vllm with kvarena in it and returns the module `nanovllm`.

    `checkout` is a folder with upstream's sources (default: the environment's KVARENA_NANO_VLLM), else the
    installed package is taken. A second call changes nothing. Raises RuntimeError when nanovllm has been
    imported without kvarena, and ImportError when there is none.
    """
    known = sys.modules.get(_ATTENTION)
    if known is not None:
        if getattr(known, "Attention", None) is Attention:
            return sys.modules["nanovllm"]
        raise RuntimeError(
            "nanovllm has been imported already; call kvarena.nano_vllm.install() before it"
        )
    folder = checkout or os.environ.get("KVARENA_NANO_VLLM")
    if folder:
        sys.path.insert(0, folder)
    attention: Any = types.ModuleType(_ATTENTION)
    attention.Attention = Attention
    sys.modules[_ATTENTION] = attention
    try:
        nanovllm = importlib.import_module("nanovllm")
        manager: Any = importlib.import_module("nanovllm.engine.block_manager")
        scheduler: Any = importlib.import_module("nanovllm.engine.scheduler")
        runner = importlib.import_module("nanovllm.engine.model_runner")
        config = importlib.import_module("nanovllm.config")
    except BaseException:
        for name in [n for n in sys.modules if n == "nanovllm" or n.startswith("nanovllm.")]:
            del sys.modules[name]
        raise
    stock = manager.BlockManager
    form = UpstreamBlockManager if hasattr(stock, "hash_blocks") else ForkBlockManager
    manager.BlockManager = scheduler.BlockManager = form
    patch_runner(runner.ModelRunner)
    patch_config(config.Config)
    if form is ForkBlockManager:
        patch_rope(sys.modules["nanovllm.models.qwen3"])
    return nanovllm
