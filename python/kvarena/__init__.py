"""Paged KV-cache memory for engines that serve language models.

A `Device` has memory; a `Cache` on it has one pool of blocks; a `Sequence` owns blocks of the pool by a
block table. `Cache.step` grows sequences, writes K and V of their new tokens and attends over all of
them. A pool that is empty answers with `Exhausted`, which says who holds the blocks; nothing has changed
then. Tensors go in and out by DLPack without a copy. Importing needs neither a GPU nor torch nor numpy.
"""

from kvarena import _core
from kvarena._core import (
    Cache,
    Device,
    Kernels,
    Monitor,
    Pin,
    Pool,
    Sequence,
    Step,
    footprint,
    has_cuda,
    layer_view,
    now_ns,
    pool_plan,
)
from kvarena._errors import (
    ContextLengthExceeded,
    DeviceError,
    DoubleRelease,
    DuplicateArgument,
    Error,
    Exhausted,
    FailedPrecondition,
    InsufficientVram,
    InvalidArgument,
    InvariantViolated,
    IoError,
    LimitExceeded,
    NotFound,
    ParseError,
    ReferenceUnderflow,
    ResidencyViolated,
    StaleHandle,
    Unsupported,
    VerificationFailed,
)
from kvarena._health import HealthServer
from kvarena._log import on_violation, set_log
from kvarena._options import CacheOptions, KernelsOptions, MonitorOptions
from kvarena._plan import Plan, devices, plan, presets
from kvarena._records import (
    Allocation,
    BlockInfo,
    DeviceBatch,
    DeviceInfo,
    Explanation,
    Footprint,
    HolderReport,
    LayerView,
    Operation,
    PoolPlan,
    SequenceInfo,
    Stats,
)
from kvarena._paths import include_dir, library_path

__version__ = _core.version()

__all__ = [
    "Allocation",
    "BlockInfo",
    "Cache",
    "CacheOptions",
    "ContextLengthExceeded",
    "Device",
    "DeviceBatch",
    "DeviceError",
    "DeviceInfo",
    "DoubleRelease",
    "DuplicateArgument",
    "Error",
    "Exhausted",
    "Explanation",
    "FailedPrecondition",
    "Footprint",
    "HealthServer",
    "HolderReport",
    "InsufficientVram",
    "InvalidArgument",
    "InvariantViolated",
    "IoError",
    "Kernels",
    "KernelsOptions",
    "LayerView",
    "LimitExceeded",
    "Monitor",
    "MonitorOptions",
    "NotFound",
    "Operation",
    "ParseError",
    "Pin",
    "Plan",
    "Pool",
    "PoolPlan",
    "ReferenceUnderflow",
    "ResidencyViolated",
    "Sequence",
    "SequenceInfo",
    "StaleHandle",
    "Stats",
    "Step",
    "Unsupported",
    "VerificationFailed",
    "__version__",
    "devices",
    "footprint",
    "has_cuda",
    "include_dir",
    "layer_view",
    "library_path",
    "now_ns",
    "on_violation",
    "plan",
    "pool_plan",
    "presets",
    "set_log",
]
