"""Plans: how much memory a model takes, and how many sequences fit."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from kvarena import _core


class Plan(Mapping[str, Any]):
    """A plan, as the library computed it. Members of its JSON are items and attributes."""

    def __init__(self, values: dict[str, Any]) -> None:
        self._values = values

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_") and name in self._values:
            return self._values[name]
        raise AttributeError(f"a plan has no {name!r}; it has {', '.join(self._values)}")

    def __repr__(self) -> str:
        return f"kvarena.Plan({self._values!r})"


def plan(
    model: str,
    *,
    gpu: str | None = None,
    memory_bytes: int | None = None,
    context: int | None = None,
    **options: Any,
) -> Plan:
    """Plans the memory of a model on a GPU, on any machine.

    `model` is a preset's name or a path to a model's files; either `gpu` (a preset's name) or
    `memory_bytes` is needed. Other options are named as in kvarena's PlanOptions.
    """
    request: dict[str, Any] = {"model": model, **options}
    if gpu is not None:
        request["gpu"] = gpu
    if memory_bytes is not None:
        request["memory_bytes"] = memory_bytes
    if context is not None:
        request["context_tokens"] = context
    return Plan(json.loads(_core.plan_json(json.dumps(request))))


def presets() -> dict[str, list[str]]:
    """Returns the names of the built-in models and GPUs."""
    names: dict[str, list[str]] = json.loads(_core.presets_json())
    return names


def devices(with_memory: bool = False) -> dict[str, Any]:
    """Returns the machine's GPUs and, when there is none, why.

    With `with_memory` it reads their free memory, which creates a CUDA context on each.
    """
    found: dict[str, Any] = json.loads(_core.devices_json(with_memory))
    return found
