"""transformers on kvarena: a `Cache` for `past_key_values`, and the attention "kvarena".

    import kvarena.transformers

    model.set_attn_implementation("kvarena")
    cache = kvarena.transformers.Cache(model.config, num_blocks=4096)
    model.generate(ids, past_key_values=cache)

The model's layers call `update` and then the attention. `update` hands K and V on as they are, with their
layer attached; the attention writes them and attends by block tables. No tensor of all keys is ever made.
Beams are forks, `crop` truncates, and tokens of left padding are not stored. Recurrent layers get their
states from slots of the same pool. Running out of blocks raises `kvarena.Exhausted`; the cache is as it was
before the forward.
"""

from __future__ import annotations

import contextlib
import math
from typing import Any

import torch
import transformers
from transformers import AttentionInterface
from transformers.cache_utils import DYNAMIC_LAYER_TYPE_MAPPING as LAYER_TYPES
from transformers.cache_utils import Cache as TransformersCache
from transformers.cache_utils import CacheLayerMixin
from transformers.masking_utils import AttentionMaskInterface

import kvarena
from kvarena._options import LayerGroup
from kvarena._states import StateLayer, States
from kvarena._torch import device_of

NAME = "kvarena"  #: of the attention and the mask
RETENTIONS = ("full", "model")  #: the tokens that a cache keeps: all, or those that the model reads
#: What a cache keeps for a type of layer. Types that are not here are refused.
KINDS = {
    "full_attention": "full",
    "sliding_attention": "window",
    "chunked_attention": "chunk",
    "linear_attention": "state",
    "conv": "state",
    "moe": "",
    "mlp": "",
}


class ModelShape:
    """What a cache must know of a model. Raises ValueError for layers that it cannot hold."""

    def __init__(self, config: Any, retention: str = "full") -> None:
        if retention not in RETENTIONS:
            raise ValueError(f"retention: {retention!r}; accepted: {', '.join(RETENTIONS)}")
        text = config.get_text_config(decoder=True)
        self.config = text
        self.num_layers: int = text.num_hidden_layers
        windows = self.windows_of(text)
        self.window: int = max(windows)
        self.chunk: int = getattr(text, "attention_chunk_size", None) or 0
        types = getattr(text, "layer_types", None) or [
            "sliding_attention" if window else "full_attention" for window in windows
        ]
        self.refuse_others(set(types))
        self.kinds: list[str] = [KINDS[name] for name in types]
        if not self.window:
            self.kinds = ["full" if kind == "window" else kind for kind in self.kinds]
        if "window" not in self.kinds:
            self.window = 0
        self.states = [layer for layer, kind in enumerate(self.kinds) if kind == "state"]
        limited = {"window", "chunk"} & set(self.kinds)
        if retention == "full" and ("chunk" in limited or (self.states and limited)):
            given = {"window": "sliding_attention", "chunk": "chunked_attention"}[min(limited)]
            raise ValueError(
                f"config: {text.model_type} has {given}; accepted: layers of full or sliding "
                'attention, each with K and V of its own. Give retention="model" for this model'
            )
        #: Layers of several kinds share pages, and keep what the model reads.
        self.has_groups = retention == "model" or bool(self.states)
        self.describe_attention()

    def windows_of(self, text: Any) -> list[int]:
        """The window of each layer; 0: none. Raises ValueError when there are several sizes."""
        given = getattr(text, "sliding_window", None) or 0
        if not isinstance(given, (list, tuple)):
            return [given] * self.num_layers
        windows = [window or 0 for window in given]
        sizes = sorted({window for window in windows if window})
        if len(windows) != self.num_layers or len(sizes) > 1:
            raise ValueError(
                f"config: {text.model_type} has sliding windows of several sizes {list(given)}; accepted: "
                f"one size, or a list of {self.num_layers} with one size and None for layers of full "
                "attention. A kvarena.Cache takes a group for each size; with transformers use its "
                "DynamicCache for this model"
            )
        return windows

    def refuse_others(self, types: set[str]) -> None:
        """Raises ValueError for layers that no cache of kvarena holds."""
        text = self.config
        shares = bool(getattr(text, "num_kv_shared_layers", 0)) or hasattr(text, "kv_lora_rank")
        # A layer of several convolutions keeps a state for each.
        several = getattr(text, "number_of_conv_states", 1) > 1
        unknown = types - set(KINDS)
        if unknown or shares or several:
            given = ", ".join(sorted(unknown)) or (
                "layers that share or compress K and V" if shares else "several states in a layer"
            )
            raise ValueError(
                f"config: {text.model_type} has {given}; accepted: layers of full, sliding or "
                "chunked attention, each with K and V of its own, and recurrent layers with one "
                "state. Use transformers' DynamicCache for this model"
            )

    def describe_attention(self) -> None:
        """Finds the heads. Where no layer attends, the pool gets a layer that keeps one block and that nobody
        reads, because the sequences of a pool have tokens."""
        self.attends = bool({"full", "window", "chunk"} & set(self.kinds))
        self.num_q_heads, self.num_kv_heads, self.head_dim = 1, 1, 64
        if not self.attends:
            return
        text = self.config
        self.num_q_heads = text.num_attention_heads
        self.num_kv_heads = getattr(text, "num_key_value_heads", None) or self.num_q_heads
        self.head_dim = (
            getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
        )

    def groups(
        self, dtype: torch.dtype, head_dim_v: int, planes: Any = (), **options: Any
    ) -> list[LayerGroup]:
        """Returns the layers by what they keep. `options` are members of LayerGroup."""
        found: dict[str, list[int | tuple[int, int]]] = {}
        for layer, kind in enumerate(self.kinds):
            found.setdefault(kind, []).append(layer)
        if not self.attends:
            found["window"] = [self.num_layers]
            # A block like the state of a layer: pages have at most 64 blocks.
            state = sum(plane.itemsize * math.prod(shape) for plane, shape in planes)
            token = 2 * self.head_dim * dtype.itemsize
            options["block_size"] = min(max(16, state // token), 65536)
        limits = {"window": self.window or 1, "chunk": self.chunk}
        rollback = options.pop("rollback_tokens", 0)
        groups = [
            LayerGroup(
                layers=found[kind],
                kind=kind,
                limit_tokens=limits.get(kind, 0),
                rollback_tokens=rollback if kind == "window" else 0,
                num_kv_heads=self.num_kv_heads,
                head_dim=self.head_dim,
                head_dim_v=head_dim_v,
                dtype=dtype,
                **options,
            )
            for kind in ("full", "window", "chunk")
            if kind in found
        ]
        if self.states:
            groups.append(
                LayerGroup(layers=self.states, kind="state", planes=planes, state_mode="read_write")
            )
        return groups

    def options(
        self, dtype: torch.dtype, head_dim_v: int, planes: Any = (), **options: Any
    ) -> kvarena.CacheOptions:
        """Returns the options of a cache that holds what the model keeps."""
        if self.has_groups:
            its = {k: options.pop(k) for k in ("block_size", "rollback_tokens") if k in options}
            longest = getattr(self.config, "max_position_embeddings", None) or 0
            options.setdefault("page_sequence_tokens", longest)
            if self.states and options.setdefault("checkpoint_every_tokens", -1) != -1:
                raise ValueError(
                    f"checkpoint_every_tokens: {options['checkpoint_every_tokens']}; accepted: -1, "
                    "because transformers' layers do not tell the states inside a forward"
                )
            return kvarena.CacheOptions(
                groups=self.groups(dtype, head_dim_v, planes, **its),
                num_q_heads=self.num_q_heads,
                **options,
            )
        return kvarena.CacheOptions(
            num_layers=self.num_layers,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            head_dim_v=head_dim_v,
            num_q_heads=self.num_q_heads,
            window_tokens=self.window,
            dtype=dtype,
            **options,
        )

    def require_attention(self) -> None:
        """Raises ValueError when the model's attention is another: it would see new tokens only."""
        if not self.attends:
            return
        chosen = self.config._attn_implementation
        if chosen != NAME:
            raise ValueError(
                f'past_key_values: the model\'s attention is "{chosen}"; accepted: "{NAME}". '
                f'Call model.set_attn_implementation("{NAME}")'
            )


class MaskLength(int):
    """The length of a mask, with the cache that it is for: transformers gives it to `mask`."""

    cache: Cache


class Layer(CacheLayerMixin):
    """One attention layer of a cache. It holds no tensors: the cache's blocks do."""

    is_compileable = False
    is_croppable = True
    is_sliding = False
    supports_early_init = False

    def __init__(self, cache: Cache, index: int) -> None:
        super().__init__()
        self.cache = cache
        self.index = index

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Hands new K and V on to the attention, with the layer on a view of K."""
        self.cache.expect_attention(self.index, key_states, value_states)
        self.is_initialized = True
        key = key_states.view(key_states.shape)
        key._kvarena_layer = self
        return key, value_states

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        length = MaskLength(self.get_seq_length() + query_length)
        length.cache = self.cache
        return length, 0

    def get_seq_length(self) -> int:
        self.cache.settle()
        return self.cache.seen  # a forward counts when its last layer has ended

    def get_max_length(self) -> int:
        return -1


class Cache(TransformersCache):
    """Blocks of one pool for the rows of a batch; `past_key_values` of a model.

    `num_blocks` and other members of CacheOptions are those of the pool, which is made at the first
    forward, on its device and of its dtype. `kv` is the pool then.

    `retention` is "full", or "model": layers with a window or chunk keep only the tokens that they
    still read. Then `num_blocks` counts pages, which all layers share, and `crop` can take back
    `rollback_tokens` tokens at most (default 0).

    A model with recurrent layers needs no `retention` for them: `num_blocks` counts pages too, and
    `crop` can take back nothing, or all.
    """

    def __init__(
        self, config: Any, *, num_blocks: int, retention: str = "full", **options: Any
    ) -> None:
        if num_blocks < 1:
            raise ValueError(f"num_blocks: {num_blocks}; accepted: 1 or more")
        self.shape = ModelShape(config, retention)
        self.pool_options: dict[str, Any] = {"num_blocks": num_blocks, **options}
        self.kv: kvarena.Cache | None = None
        self.rows: list[kvarena.Sequence] = []
        self.step: kvarena.Step | None = None
        self.keep: torch.Tensor | None = None  # indices of the tokens that are no padding
        self.seen = 0  # tokens of a row before this forward, with padding
        self.seen_next = 0  # the same after it
        self.states = States()
        self.told: tuple[int, int, torch.Tensor | None] | None = None  # batch, tokens, mask
        #: The layers that keep something. A forward comes to them in this order.
        self.order = [layer for layer, kind in enumerate(self.shape.kinds) if kind]
        self.next = 0  # place in `order` of the layer that comes next
        self.open: StateLayer | None = None  # the recurrent layer that runs
        self.asked: set[str] = set()  # what that layer has asked for
        super().__init__(layers=[self.make_layer(i) for i in range(self.shape.num_layers)])

    def make_layer(self, index: int) -> Any:
        kind = self.shape.kinds[index]
        if kind == "":
            return LAYER_TYPES["dummy" if "dummy" in LAYER_TYPES else "mlp"]()
        return StateLayer(self, index) if kind == "state" else Layer(self, index)

    # -- a forward ------------------------------------------------------------------------------

    def expect(self, layer: int) -> None:
        """A layer begins. A forward that an exception ended leaves no trace."""
        if layer == self.order[0]:
            self.abandon()
            self.shape.require_attention()
        self.close_layer()
        if self.next == len(self.order) or layer != self.order[self.next]:
            before = self.order[self.next - 1] if self.next else -1
            raise ValueError(
                f"past_key_values: layer {layer} comes after layer {before}, whose "
                f'attention was not "{NAME}"; accepted: all layers in order, with this attention'
            )

    def enter(self, layer: StateLayer, asked: str = "") -> None:
        """A recurrent layer begins or goes on. The first one begins again when it asks again."""
        if self.open is not layer or (asked in self.asked and layer.index == self.order[0]):
            self.expect(layer.index)
            layer.load(self.states.read(layer.index) if self.seen else [])
            self.open, self.asked = layer, set()
            self.next += 1
        if asked:
            self.asked.add(asked)

    def close_layer(self) -> None:
        """Writes the states that the recurrent layer has left."""
        layer, self.open = self.open, None
        if layer is None:
            return
        tensors = layer.unload()
        self.states.describe(layer.index, tensors)
        if self.kv is None:
            conv = tensors[0]
            self.create_pool(conv.device, conv.dtype, self.shape.head_dim)
        if self.step is None:
            self.begin(*(self.told or (len(tensors[0]), layer.tokens, None)))
        self.states.write(layer.index, tensors)
        self.end_layer()

    def end_layer(self) -> None:
        """Ends the forward behind its last layer."""
        if self.next < len(self.order):
            return
        step, self.step, self.next = self.step, None, 0
        assert step is not None
        self.seen, self.told = self.seen_next, None
        if self.shape.states:
            self.states.end(self.rows)
        step.__exit__(None, None, None)

    def settle(self) -> None:
        """Ends a forward whose last layer is recurrent. No call of transformers says that it has ended, so
        that the next use of the cache does this."""
        if self.open is None or self.next < len(self.order):
            return
        tokens = self.open.tokens if self.step is None else self.seen_next - self.seen
        if self.open.may_have_ended(tokens, len(self.states.planes)):
            self.close_layer()

    def expect_attention(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        """Checks what `update` was given."""
        self.expect(layer)
        heads, dim = self.shape.num_kv_heads, self.shape.head_dim
        if key.ndim != 4 or key.shape[1] != heads or key.shape[3] != dim:
            raise ValueError(
                f"key_states: shape {list(key.shape)} in layer {layer}; accepted: "
                f"[batch, {heads}, tokens, {dim}]"
            )
        if self.kv is None:
            self.create_pool(key.device, key.dtype, value.shape[3])

    def create_pool(self, device: torch.device, dtype: torch.dtype, head_dim_v: int) -> None:
        """Creates the pool for tensors like these, and for the states that are known by then."""
        if self.shape.states and not self.states.planes:
            raise ValueError(
                f"config: {self.shape.config.model_type} has an attention layer before the first "
                "recurrent one; accepted: a recurrent layer first, whose states tell the shapes"
            )
        options = {"num_threads": torch.get_num_threads(), **self.pool_options}
        block = options.setdefault("block_size", 16)
        options.setdefault("max_sequences", 256)
        most = 16384 if self.shape.has_groups else options["num_blocks"] * block
        options.setdefault("max_step_tokens", min(16384, most))
        self.kv = kvarena.Cache(
            device_of(device),
            self.shape.options(dtype, head_dim_v, self.states.planes, **options),
        )
        self.states.attach(self.kv, self.shape.states)

    def begin(self, batch: int, tokens: int, mask: torch.Tensor | None) -> kvarena.Step:
        """Begins the step of a forward: every row grows by its tokens that are no padding."""
        assert self.kv is not None
        rows = self.rows or [self.kv.create_sequence() for _ in range(batch)]
        try:
            return self.begin_step(rows, batch, tokens, mask)
        except BaseException:
            if not self.rows:
                self.kv.destroy(rows)
            raise

    def begin_step(
        self, rows: list[kvarena.Sequence], batch: int, tokens: int, mask: torch.Tensor | None
    ) -> kvarena.Step:
        assert self.kv is not None
        if len(rows) != batch:
            raise ValueError(
                f"past_key_values: it holds {len(rows)} rows and the batch has {batch}; "
                "call reset() between batches"
            )
        counts, self.keep = [tokens] * batch, None
        if mask is not None:
            new = mask[:, -tokens:]
            counts = new.sum(1).tolist()
            stored = [row.length for row in rows]
            if (mask[:, :-tokens].sum(1).tolist() if self.seen else [0] * batch) != stored:
                raise ValueError(
                    "attention_mask: it does not continue that of the tokens stored; accepted: the "
                    "same padding on the left in every forward"
                )
            if sum(counts) != batch * tokens:
                self.keep = new.reshape(-1).nonzero().squeeze(1)
        step = self.kv.step(list(zip(rows, counts, strict=True)))
        step.__enter__()
        self.step, self.rows, self.seen_next = step, rows, self.seen + tokens
        if self.shape.states:
            self.states.begin(step, counts)
        return step

    def attend(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Any, **how: Any
    ) -> torch.Tensor:
        """Writes K and V and attends. q, k, v are [batch, heads, tokens, dim]; so is the result,
        with tokens before heads."""
        batch, heads, tokens, _ = q.shape
        step = self.step or self.begin(batch, tokens, mask)
        step.write(layer, self.packed(k), self.packed(v))
        out = step.attend(layer, self.packed(q), **how)
        self.next += 1
        self.end_layer()
        if self.keep is None:
            return out.view(batch, tokens, heads, -1)
        padded = out.new_zeros(batch * tokens, heads, out.shape[2])
        padded[self.keep] = out
        return padded.view(batch, tokens, heads, -1)

    def packed(self, states: torch.Tensor) -> torch.Tensor:
        """[batch, heads, tokens, dim] as [tokens that are no padding, heads, dim]."""
        tokens = states.transpose(1, 2).reshape(-1, states.shape[1], states.shape[3])
        if self.keep is not None:
            tokens = tokens.index_select(0, self.keep)
        return tokens if tokens.stride()[1:] == (states.shape[3], 1) else tokens.contiguous()

    def abandon(self) -> None:
        """Gives up a forward that did not reach its last layer."""
        self.settle()
        step, self.step, self.next, self.open = self.step, None, 0, None
        if step is not None:
            step.__exit__(RuntimeError, RuntimeError("the forward did not end"), None)

    # -- what generate() asks of a cache --------------------------------------------------------

    def pick(self, sources: list[int]) -> None:
        """Makes row i of what was row sources[i]. The first use of a row keeps it; others fork."""
        self.abandon()
        if not self.rows:
            return
        assert self.kv is not None
        used = set(sources)
        if not used <= set(range(len(self.rows))):
            raise IndexError(f"rows: {sources}; accepted: 0 to {len(self.rows) - 1}")
        self.kv.destroy([row for i, row in enumerate(self.rows) if i not in used])
        kept: set[int] = set()
        rows = []
        for i in sources:
            rows.append(self.rows[i].fork() if i in kept else self.rows[i])
            kept.add(i)
        self.rows = rows
        self.states.pick(sources)

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        self.pick(beam_idx.tolist())

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        chosen = indices.nonzero().squeeze(1) if indices.dtype == torch.bool else indices
        self.pick(chosen.tolist())

    def batch_repeat_interleave(self, repeats: int) -> None:
        self.pick([i for i in range(len(self.rows)) for _ in range(repeats)])

    def crop(self, tokens_to_remove: int) -> None:
        """Removes the last -tokens_to_remove tokens of every row."""
        if tokens_to_remove > 0:
            raise ValueError(
                f"tokens_to_remove: {tokens_to_remove}; accepted: the negative number of tokens"
            )
        self.abandon()
        removed = min(-tokens_to_remove, self.seen)
        if self.shape.states and 0 < removed < self.seen:
            raise ValueError(
                f"tokens_to_remove: {tokens_to_remove}; accepted: 0, or all {-self.seen}, because "
                "the model has recurrent layers, whose states before the last forward are gone"
            )
        for row in self.rows:
            row.truncate(max(0, row.length - removed))
        self.seen -= removed
        if self.seen == 0:
            self.states.present = None

    def reset(self) -> None:
        """Ends all rows. The pool stays."""
        self.abandon()
        if self.kv is not None:
            self.kv.destroy(self.rows)
        self.rows, self.seen, self.states.present = [], 0, None
        for layer in self.layers:
            layer.is_initialized = False

    def activate_past_recording(self) -> None:
        if self.shape.states:
            raise ValueError(
                "past_key_values: the model has recurrent layers, whose states cannot be taken back; "
                "accepted: generate() without an assistant and without prompt lookup"
            )

    # -- what recurrent layers ask of a cache ---------------------------------------------------

    def has_previous_state(
        self, layer_idx: int | None = None, state_idx: int | None = None
    ) -> bool:
        if layer_idx is None:
            self.settle()
            return self.seen > 0
        self.enter_at(layer_idx, "whether there is a state")
        return bool(super().has_previous_state(layer_idx))

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> torch.Tensor | None:
        self.enter_at(layer_idx, "the convolution's state")
        return super().get_conv_state(layer_idx, state_idx)

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> torch.Tensor | None:
        self.enter_at(layer_idx, "the recurrence's state")
        return super().get_recurrent_state(layer_idx, state_idx)

    def update_conv_state(
        self, conv_states: torch.Tensor, layer_idx: int, *args: Any, **named: Any
    ) -> torch.Tensor:
        self.enter_at(layer_idx, "to update the convolution's state")
        return super().update_conv_state(conv_states, layer_idx, *args, **named)

    def update_recurrent_state(
        self, recurrent_states: torch.Tensor, layer_idx: int, *args: Any, **named: Any
    ) -> torch.Tensor:
        self.enter_at(layer_idx, "to update the recurrence's state")
        return super().update_recurrent_state(recurrent_states, layer_idx, *args, **named)

    def enter_at(self, index: int, asked: str) -> None:
        layer = self.layers[index]
        if isinstance(layer, StateLayer):
            self.enter(layer, asked)

    @property
    def batch_size(self) -> int:
        return len(self.rows) or -1

    @property
    def max_batch_size(self) -> int:
        return self.batch_size


def attend_arguments(
    module: torch.nn.Module, window: int, dropout: float, named: dict[str, Any]
) -> dict[str, Any]:
    """The arguments of kvarena's attend for those of an attention function of transformers."""
    if dropout:
        raise ValueError(f"dropout: {dropout}; accepted: 0. Call model.eval()")
    if named.get("is_causal", getattr(module, "is_causal", True)) is False:
        raise ValueError(f'is_causal: False; accepted: the attention "{NAME}" is causal')
    sliding = named.get("sliding_window") or 0
    if sliding and sliding != window:
        raise ValueError(f"sliding_window: {sliding}; accepted: {window}, as in the config")
    how: dict[str, Any] = {"scale": named.get("scaling") or 0.0, "windowed": bool(sliding)}
    if named.get("softcap"):
        how["soft_cap"] = named["softcap"]
    if named.get("s_aux") is not None:
        how["sinks"] = named["s_aux"].detach().float()
    return how


def attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    **named: Any,
) -> tuple[torch.Tensor, None]:
    """The attention "kvarena" of transformers: [batch, tokens, heads, dim], and no weights."""
    if named.get("cache") is not None:
        from kvarena import _batching

        return _batching.attention(module, query, key, value, named["cache"], dropout, named), None
    layer = getattr(key, "_kvarena_layer", None)
    if layer is None:
        raise ValueError(
            f'attention "{NAME}": past_key_values is no kvarena cache; accepted: '
            "kvarena.transformers.Cache(model.config, num_blocks=...)"
        )
    if attention_mask is not None and attention_mask.ndim != 2:
        raise ValueError(
            f"attention_mask: shape {list(attention_mask.shape)}; accepted: None, or "
            "[batch, tokens] with padding on the left"
        )
    layers = module.config.num_hidden_layers
    if layers != layer.cache.shape.num_layers:
        raise ValueError(
            f"past_key_values: it is for {layer.cache.shape.num_layers} layers and the model has "
            f"{layers}; accepted: kvarena.transformers.Cache(model.config, ...) of this model"
        )
    how = attend_arguments(module, layer.cache.shape.window, dropout, named)
    if layer.cache.shape.has_groups:
        how["windowed"] = False  # the layer's group says what it sees
    return layer.cache.attend(layer.index, query, key, value, attention_mask, **how), None


def mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    attention_mask: torch.Tensor | None = None,
    allow_is_causal_skip: bool = True,
    **named: Any,
) -> torch.Tensor | None:
    """The mask "kvarena": None, or [batch, kv_length] of which tokens are no padding."""
    if not allow_is_causal_skip or "allow_is_bidirectional_skip" in named:
        raise ValueError(
            f'attention "{NAME}": the model asks for a mask of its own form; accepted: causal '
            "attention, with a window or without, and padding on the left"
        )
    cache = getattr(kv_length, "cache", None)
    if cache is not None:
        cache.told = (batch_size, q_length, None)
    if attention_mask is None or bool(attention_mask.all()):
        return None
    seen = attention_mask[:, :kv_length].bool()
    if bool((seen[:, 1:] < seen[:, :-1]).any()):
        raise ValueError(
            "attention_mask: there is padding behind tokens; accepted: padding on the left. "
            'Set tokenizer.padding_side = "left"'
        )
    if cache is not None:
        cache.told = (batch_size, q_length, seen)
    return seen


def continuous_batching(
    model: Any, *, num_blocks: int, **options: Any
) -> contextlib.AbstractContextManager[Any]:
    """A context in which `model.generate_batch` runs on a pool of `num_blocks` blocks.

    `options` are members of CacheOptions, such as block_size. It is for transformers 5.23, whose own
    batching is private to it and changes between versions. Entering gives an object whose `caches` are
    the caches that were made.
    """
    if not transformers.__version__.startswith("5.23."):
        raise ValueError(
            f"transformers: version {transformers.__version__}; accepted for continuous batching: 5.23"
        )
    from kvarena import _batching

    return _batching.continuous_batching(model, num_blocks=num_blocks, **options)


AttentionInterface.register(NAME, attention)
AttentionMaskInterface.register(NAME, mask)
