"""transformers' continuous batching (5.23) on kvarena.

Its scheduler, requests and `generate_batch` stay. In a context, four names of its module are replaced:
the cache becomes `BatchCache`, whose blocks are a pool of kvarena; the runner becomes `Runner`, which puts
each forward into a step and, on a GPU, records decode batches into CUDA graphs; the resolved configuration
allows this; and the switch to another attention is left out. Other models go their old ways.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch
import transformers.generation.continuous_batching.continuous_api as api
from transformers.generation.continuous_batching.cache import PagedAttentionCache
from transformers.generation.continuous_batching.model_runner import ModelRunner

import kvarena
from kvarena._torch import device_of
from kvarena.transformers import NAME, ModelShape, attend_arguments


class Allocator:
    """What transformers asks of the one kind of cache that it sees here. Block tables are kvarena's."""

    index = 0
    layer_type = "full_attention"
    read_trash_index = write_trash_index = 0
    use_block_sharing = False
    supports_block_table = True
    ledger = SimpleNamespace(shared_ref_counts={}, block_to_hash={})

    def __init__(self, cache: BatchCache) -> None:
        self.cache = cache
        self.tokens_per_page = cache.page_size

    def get_seqlen_k(self, past_length: int, query_length: int) -> int:
        return past_length + query_length

    def needs_new_blocks(self, request_id: str, past_length: int, query_length: int) -> int:
        return self.cache.missing(request_id, past_length + query_length)

    @property
    def block_table(self) -> dict[str, list[int]]:
        return {name: sequence.blocks for name, sequence in self.cache.sequences.items()}


class Sectors:
    """The pool in units of transformers: a sector is a block."""

    def __init__(self, cache: BatchCache) -> None:
        self.cache = cache

    def try_to_free_sectors(self) -> None:
        """Begins a round of scheduling: what the last round wanted and did not run is forgotten."""
        self.cache.wanted = 0

    @property
    def num_free_sectors(self) -> int:
        return self.cache.free

    def count_free_blocks(self, index: int) -> int:
        return 0


class BatchCache(PagedAttentionCache):
    """The blocks of the requests: a sequence of kvarena for each, grown by the step of a forward."""

    def __init__(self, pool: dict[str, Any], **given: Any) -> None:
        config, settings = given["config"], given["continuous_batching_config"]
        if settings.cpu_offload_space:
            raise ValueError(
                f"cpu_offload_space: {settings.cpu_offload_space}; accepted: 0, because K and V "
                "stay on the device; requests that do not fit are computed again"
            )
        if given["distributed_helper"].tp_size > 1:
            raise ValueError("continuous_batching: tensor parallel models are not supported")
        self.shape = ModelShape(config)
        self.config, self.device, self.dtype = config, given["device"], given["dtype"]
        self.page_size: int = pool.get("block_size", 16)
        self.max_batch_tokens: int = settings.max_batch_tokens or 8192
        self.max_requests: int = settings.max_requests_per_batch
        options: dict[str, Any] = {
            "block_size": self.page_size,
            "max_sequences": 2 * self.max_requests,
            "max_batch_rows": self.max_requests,
            "max_step_tokens": self.max_batch_tokens,
            "num_threads": torch.get_num_threads(),
            "prefix_cache": settings.allow_block_sharing,
            **pool,
        }
        self.allow_block_sharing = self.use_prefix_sharing = bool(options["prefix_cache"])
        self.kv = kvarena.Cache(
            device_of(torch.device(self.device)),
            self.shape.options(self.dtype, self.shape.head_dim, **options),
        )
        self.sequences: dict[str, kvarena.Sequence] = {}
        self.shared_tails: set[str] = set()  # requests whose last block a fork may share
        self.wanted = 0  # blocks that scheduled requests will take in the next step
        self.batch: list[tuple[kvarena.Sequence, int]] = []  # demands of the next step
        self.step: kvarena.Step | None = None  # of the running forward
        # Models hand masks of four dimensions on as they are, and make none themselves then.
        self.no_mask = torch.empty(1, 1, 1, 0, device=self.device)
        self.describe_to_transformers(settings)

    def describe_to_transformers(self, settings: Any) -> None:
        """Sets the attributes that scheduler, inputs and offloading read."""
        self.num_blocks = self.num_sectors = self.kv.options.num_blocks
        self.cache_allocators = {"full_attention": Allocator(self)}
        self.layer_to_allocator: dict[int, Any] = {}
        self.pool = Sectors(self)
        self.read_cache_limit = None
        # One entry of a block table that nobody reads: batches of single tokens are a path of their own then.
        self.max_blocks_per_request = int(settings.max_blocks_per_request or 0)
        self.max_decode_fast_path_length = 1 << 40
        self.max_tokens_read = self.num_blocks * self.page_size
        element = torch.empty((), dtype=self.dtype).element_size()
        heads = self.shape.num_layers * self.shape.num_kv_heads
        self.bytes_per_sector = 2 * heads * self.shape.head_dim * self.page_size * element

    # -- accounts -------------------------------------------------------------------------------

    @property
    def free(self) -> int:
        """Blocks that this round of scheduling can still give out."""
        return self.kv.available() - self.wanted

    def missing(self, request_id: str, tokens: int) -> int:
        """Blocks that a request needs to hold `tokens` tokens, with a copy of a shared last block."""
        needed = -(-tokens // self.page_size)
        sequence = self.sequences.get(request_id)
        if sequence is None:
            return needed
        return max(0, needed - sequence.num_blocks) + (request_id in self.shared_tails)

    def can_store_request_tokens(self, state: Any, request_len: int, dry_run: bool = False) -> bool:
        needed = self.missing(state.request_id, state.current_len() + request_len)
        if needed > self.free:
            return False
        if dry_run:
            return True
        if state.request_id not in self.sequences:
            try:
                self.sequences[state.request_id] = self.kv.create_sequence()
            except kvarena.Exhausted:
                return False
        self.wanted += needed
        return True

    def count_storable_requests(self, list_blocks_needed: list[dict[str, int]]) -> int:
        left = self.free
        for count, needed in enumerate(list_blocks_needed):
            left -= needed["full_attention"]
            if left < 0:
                return count
        return len(list_blocks_needed)

    def free_blocks(self, request_id: str, no_cache: bool = False) -> None:
        sequence = self.sequences.pop(request_id, None)
        self.shared_tails.discard(request_id)
        if sequence is not None:
            sequence.destroy()

    def free_all_requests(self, clear_ledgers: bool = False) -> None:
        for request_id in list(self.sequences):
            self.free_blocks(request_id)

    def reset(self) -> None:
        self.free_all_requests()

    def evict_cached_blocks(self) -> bool:
        return False  # cached blocks count as free, and go when they are needed

    def search_prefix_match(self, request_id: str, prompt_ids: list[int]) -> int:
        """A request begins with what is cached of its prompt, unless that takes blocks promised this round."""
        if not self.use_prefix_sharing or request_id in self.sequences:
            return 0
        try:
            sequence = self.kv.create_sequence(tokens=prompt_ids)
        except kvarena.Exhausted:
            return 0
        covered = sequence.prefix.tokens
        if covered == 0 or self.free < 0:
            sequence.destroy()
            return 0
        self.sequences[request_id] = sequence
        return covered

    def mark_complete_blocks(self, state: Any, complete_blocks: dict[str, int]) -> None:
        """Tells the tokens of blocks that a forward has filled. Others can begin with them now."""
        sequence = self.sequences.get(state.request_id)
        if not complete_blocks or sequence is None:
            return
        tokens = state.initial_tokens + state.generated_tokens
        figures = sequence.info()
        sequence.register(tokens[figures.known_tokens : figures.length])

    def compute_free_capacity(self, relative: bool = True) -> int | float:
        return self.free / self.num_blocks if relative else self.free * self.bytes_per_sector

    def prepare_fork_request(
        self, src_state: Any, dst_req_ids: list[str], copy_src_and_dst: Any
    ) -> list[str]:
        """Forks a request. Blocks are shared; a partly filled last one is copied by who grows first."""
        parent = self.sequences[src_state.request_id]
        has_tail = parent.length % self.page_size != 0
        forked = []
        for request_id in dst_req_ids:
            if has_tail and self.free < 1:
                break
            try:
                self.sequences[request_id] = parent.fork()
            except kvarena.Exhausted:
                break
            forked.append(request_id)
            if has_tail:
                self.shared_tails.update((src_state.request_id, request_id))
                self.wanted += 1
        return forked

    # -- a forward ------------------------------------------------------------------------------

    def extend_read_and_write_indices(
        self, request_id: str, past_length: int, query_length: int, *indices: Any
    ) -> None:
        """A request of the next batch. There are no indices: the step has block tables."""
        self.batch.append((self.sequences[request_id], query_length))
        self.shared_tails.discard(request_id)

    def fill_block_table(
        self, request_id: str, past_length: int, query_length: int, block_table: torch.Tensor
    ) -> None:
        self.extend_read_and_write_indices(request_id, past_length, query_length)

    def take_batch(self) -> list[tuple[kvarena.Sequence, int]]:
        """Returns the demands of the next step. Its blocks are no longer wanted but taken."""
        batch, self.batch, self.wanted = self.batch, [], 0
        return batch

    @contextlib.contextmanager
    def forward(self, recorded_rows: int) -> Iterator[None]:
        """The step of one forward; in a capture, the recording of one with so many rows."""
        capturing = torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
        step = self.kv.record(recorded_rows) if capturing else self.kv.step(self.take_batch())
        with step:
            self.step = step
            try:
                yield
            finally:
                self.step = None

    def attend(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **how: Any
    ) -> torch.Tensor:
        """q, k, v are [1, heads, tokens, dim]. Tokens behind those of the step are padding."""
        step = self.step
        assert step is not None
        tokens = step.num_tokens
        query, key, value = (t[0].transpose(0, 1)[:tokens] for t in (q, k, v))
        step.write(layer, dense_heads(key), dense_heads(value))
        out = query.new_zeros(q.shape[2], q.shape[1], v.shape[3])
        step.attend(layer, dense_heads(query), out=out[:tokens], **how)
        return out.unsqueeze(0)


def dense_heads(states: torch.Tensor) -> torch.Tensor:
    """The same [tokens, heads, dim] with heads and elements without gaps."""
    return states if states.stride()[1:] == (states.shape[2], 1) else states.contiguous()


class Replay:
    """A recorded decode batch: what transformers keeps as its graph."""

    def __init__(self, cache: BatchCache, graph: Any, rows: int) -> None:
        self.cache, self.graph, self.rows = cache, graph, rows

    def replay(self) -> None:
        with self.cache.kv.replay(self.rows, self.cache.take_batch()):
            self.graph.replay()

    def reset(self) -> None:
        self.graph.reset()


class Runner(ModelRunner):
    """Puts each forward into a step."""

    def _forward_process_and_sample(
        self, model: Any, batch_data: dict[str, Any], *rest: Any
    ) -> None:
        batch_data["attention_mask"] = self.cache.no_mask
        with self.cache.forward(batch_data["input_ids"].shape[1]):
            super()._forward_process_and_sample(model, batch_data, *rest)

    def _capture_graph(self, forward_fn: Any, compute_stream: Any, *args: Any) -> None:
        super()._capture_graph(forward_fn, compute_stream, *args)
        io = self.inputs_and_outputs
        io.set_graph(Replay(self.cache, io.get_graph(), args[1]["input_ids"].shape[1]))


def attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cache: BatchCache,
    dropout: float,
    named: dict[str, Any],
) -> torch.Tensor:
    """The attention "kvarena" inside a batch."""
    how = attend_arguments(module, cache.shape.window, dropout, {**named, "is_causal": True})
    return cache.attend(int(module.layer_idx), query, key, value, **how)


class Batching:
    """The caches that were made in a context."""

    def __init__(self) -> None:
        self.caches: list[BatchCache] = []


@contextlib.contextmanager
def continuous_batching(model: Any, *, num_blocks: int, **options: Any) -> Iterator[Batching]:
    """Runs a model's continuous batching on a pool of `num_blocks` blocks.

    `options` are members of CacheOptions, such as block_size. Other models are not touched.
    """
    batching = Batching()
    config = model.config.get_text_config()
    if ModelShape(config).states:
        raise ValueError(
            f"continuous_batching: {config.model_type} has recurrent layers; accepted: layers of full "
            "or sliding attention. generate() with kvarena.transformers.Cache serves this model"
        )
    old = {name: getattr(api, name) for name in ("PagedAttentionCache", "ModelRunner", RESOLVE)}
    old_switch = api.ContinuousBatchingManager.switch_to_cb_friendly_attn

    def make_cache(**given: Any) -> Any:
        if given["config"] is not config:
            return old["PagedAttentionCache"](**given)
        batching.caches.append(BatchCache({"num_blocks": num_blocks, **options}, **given))
        return batching.caches[-1]

    def make_runner(**given: Any) -> Any:
        kind = Runner if isinstance(given["cache"], BatchCache) else old["ModelRunner"]
        return kind(**given)

    def resolve(**given: Any) -> Any:
        settings = old[RESOLVE](**given)
        if given["config"] is config:
            on_gpu = model.device.type == "cuda"
            settings.max_blocks_per_request = int(on_gpu)
            settings.use_cuda_graph = (False, on_gpu)
            settings.varlen_compile_config = settings.decode_compile_config = None
            if given["cb_config"].use_async_batching is None:
                settings.use_async_batching = on_gpu
        return settings

    def switch(manager: Any, switched: Any, *rest: Any, **named: Any) -> None:
        if switched is not model:
            old_switch(manager, switched, *rest, **named)

    attention_before = model.config._attn_implementation
    model.set_attn_implementation(NAME)
    api.PagedAttentionCache, api.ModelRunner = make_cache, make_runner
    setattr(api, RESOLVE, resolve)
    api.ContinuousBatchingManager.switch_to_cb_friendly_attn = switch
    try:
        yield batching
    finally:
        for name, value in old.items():
            setattr(api, name, value)
        api.ContinuousBatchingManager.switch_to_cb_friendly_attn = old_switch
        model.set_attn_implementation(attention_before)


RESOLVE = "resolve_continuous_batching_config"
