"""What the core asks of torch, if the program has imported it."""

import sys
from typing import Any


def current_stream(ordinal: int) -> int | None:
    """Returns the handle of torch's current stream on a GPU (0: the default stream), or None."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    return int(torch.cuda.current_stream(ordinal).cuda_stream)
