"""States of recurrent layers for `kvarena.transformers`.

A recurrent layer of transformers asks the cache for tensors of the whole batch. It changes some of them in place,
and no call says when. The states of a pool lie in slots, one for each row. So the tensors are copies: a layer reads
its rows' slots when it begins, and what it has left there is written when the next layer begins, or, behind the last
layer, when the cache is next used. The slots that a forward reads stay as they are until it ends.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import LinearAttentionLayer

import kvarena


class StateLayer(LinearAttentionLayer):
    """One recurrent layer of a cache. It has tensors while it runs."""

    is_compileable = False
    is_croppable = False

    def __init__(self, cache: Any, index: int) -> None:
        self.cache, self.index = cache, index
        self.tokens = 1  # new tokens of a row; a layer that is not told otherwise has one
        self.is_half = False  # the convolution's state is new, and the recurrence's is not yet
        super().__init__()

    # transformers' layers read these members, some versions without a call before it.

    @property
    def conv_states(self) -> dict[int, torch.Tensor | None]:
        self.cache.enter(self)
        return self._conv_states

    @conv_states.setter
    def conv_states(self, states: dict[int, torch.Tensor | None]) -> None:
        self._conv_states = states

    @property
    def recurrent_states(self) -> dict[int, torch.Tensor | None]:
        self.cache.enter(self)
        return self._recurrent_states

    @recurrent_states.setter
    def recurrent_states(self, states: dict[int, torch.Tensor | None]) -> None:
        self._recurrent_states = states

    def update_conv_state(
        self, conv_states: torch.Tensor, *args: Any, **named: Any
    ) -> torch.Tensor:
        self.tokens, self.is_half = conv_states.shape[-1], True
        return super().update_conv_state(conv_states, *args, **named)

    def update_recurrent_state(
        self, recurrent_states: torch.Tensor, *args: Any, **named: Any
    ) -> torch.Tensor:
        self.is_half = False
        return super().update_recurrent_state(recurrent_states, *args, **named)

    def load(self, tensors: list[torch.Tensor]) -> None:
        """Begins with the states of the rows: those of the convolution and, where there are some, of the
        recurrence. An empty list: with none."""
        conv, recurrent = (*tensors, None, None)[:2]
        self.tokens, self.is_half = 1, False
        self._conv_states[0], self._recurrent_states[0] = conv, recurrent
        self.is_conv_states_initialized[0] = conv is not None
        self.is_recurrent_states_initialized[0] = recurrent is not None
        self.has_previous_state[0] = conv is not None
        if conv is not None:
            self.dtype, self.device = conv.dtype, conv.device
            self.conv_kernel_size[0] = conv.shape[-1]

    def may_have_ended(self, tokens: int, num_states: int) -> bool:
        """Returns whether the layer can have left its states behind so many new tokens. Of a single token it
        need not tell."""
        is_half = self.is_half and num_states == 2
        return self.tokens == tokens and not is_half and self._conv_states[0] is not None

    def unload(self) -> list[torch.Tensor]:
        """Ends, and returns the states that the layer has left."""
        left = [self._conv_states[0], self._recurrent_states[0]]
        self._conv_states[0] = self._recurrent_states[0] = None
        return [states for states in left if states is not None]


class States:
    """Where the states of a cache's rows are. All recurrent layers keep tensors of the same shapes."""

    def __init__(self) -> None:
        #: (dtype, shape) of what a layer keeps, known when the first layer has run
        self.planes: list[tuple[torch.dtype, list[int]]] = []
        self.group = 0
        self.views: dict[int, tuple[int, list[torch.Tensor]]] = {}  # part and planes, by layer
        self.present: torch.Tensor | None = None  # [rows, parts] slots between forwards; -1: zeros
        self.written: torch.Tensor | None = None  # the same behind this forward; -1: no new tokens
        self.has_empty = False  # a row's slot can be -1 in `present`
        self.has_idle = False  # a row's slot can be -1 in `written`

    def describe(self, layer: int, tensors: list[torch.Tensor]) -> None:
        """Learns from the first layer what layers keep, and checks the others."""
        found = [(states.dtype, list(states.shape[1:])) for states in tensors]
        self.planes = self.planes or found
        if found != self.planes or not found:
            raise ValueError(
                f"config: the recurrent layer {layer} keeps {found}; accepted: {self.planes}, as the "
                "recurrent layers before it"
            )
        if any(states.requires_grad for states in tensors):
            raise ValueError(
                f"states: a tensor that requires grad in layer {layer}; accepted: inference. "
                "Call the model under torch.no_grad()"
            )

    def attach(self, kv: kvarena.Cache, layers: list[int]) -> None:
        """Finds the states of the layers in a pool."""
        with torch.inference_mode(False):  # the views are written in other modes too
            for layer in layers:
                view = kv.state_view(layer)
                self.group = view.group
                planes = [torch.from_dlpack(plane) for plane in view.planes]
                self.views[layer] = (view.part, planes)

    def begin(self, step: kvarena.Step, counts: list[int]) -> None:
        """A step has begun, in which row i has counts[i] new tokens."""
        self.written = torch.from_dlpack(step.states(self.group).device_write).long()
        self.has_idle = 0 in counts

    def end(self, rows: list[kvarena.Sequence]) -> None:
        """The step of these rows has ended. A row without new tokens has had none before: it is padding."""
        self.present, self.written = self.written, None
        self.has_empty = any(row.length == 0 for row in rows)

    def pick(self, sources: list[int]) -> None:
        """Row i continues what was row sources[i]."""
        if self.present is not None:
            self.present = self.present[torch.tensor(sources, device=self.present.device)]

    def read(self, layer: int) -> list[torch.Tensor]:
        """Copies a layer's states before this forward, each [rows, *shape]."""
        assert self.present is not None
        part, planes = self.views[layer]
        slots = self.present[:, part]
        found = [plane.index_select(0, slots.clamp(min=0)) for plane in planes]
        if self.has_empty:
            for states in found:
                states[slots < 0] = 0
        return found

    def write(self, layer: int, tensors: list[torch.Tensor]) -> None:
        """Writes a layer's states behind this forward."""
        assert self.written is not None
        part, planes = self.views[layer]
        slots = self.written[:, part]
        if self.has_idle:
            tensors, slots = [states[slots >= 0] for states in tensors], slots[slots >= 0]
        for plane, states in zip(planes, tensors, strict=True):
            plane.index_copy_(0, slots, states)
