"""What the package asks of torch. It imports torch nowhere: a program that uses torch has done so."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import kvarena

_devices: dict[str, kvarena.Device] = {}


def current_stream(ordinal: int) -> int | None:
    """Returns the handle of torch's current stream on a GPU (0: the default stream), or None."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    return int(torch.cuda.current_stream(ordinal).cuda_stream)


def device_of(device: Any) -> kvarena.Device:
    """Returns kvarena's device for one of torch's; there is one of each in the process."""
    import kvarena

    name = "cpu" if device.type == "cpu" else f"{device.type}:{device.index or 0}"
    if name not in _devices:
        _devices[name] = kvarena.Device(name)
    return _devices[name]
