"""Options of caches and monitors. 0 means the default where there is one."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kvarena._records import Operation, PrefixEvent


@dataclass(kw_only=True)
class LayerGroup:
    """Layers that keep the same data."""

    layers: Sequence[
        int | tuple[int, int]
    ]  #: the model's layers; (layer, reads_layer): it reads another's K and V
    num_kv_heads: int = 0  #: 1 .. 4096
    head_dim: int = 0  #: 1 .. 4096
    head_dim_v: int = 0  #: 1 .. 4096; 0: the same as head_dim
    kind: str = "full"  #: what is kept: "full", "window", "chunk", "cross", or "state"
    limit_tokens: int = 0  #: of windows, chunks and encoders
    rollback_tokens: int = 0  #: windows: tokens that can be taken back
    block_size: int = 0  #: 1 .. 65536; 0: 16
    value_in_key: bool = False  #: V is the leading head_dim_v elements of K: a latent
    dtype: Any = "f16"  #: of K and V: as in CacheOptions, or "latent_fp8"
    dtype_v: Any = None  #: of V; None: that of K
    planes: Sequence[
        tuple[Any, Sequence[int]]
    ] = ()  #: states: (dtype, shape) of what a layer keeps, 1 .. 8
    state_mode: str = "in_place"  #: states: the kernel reads and writes one slot; or "read_write": it writes another
    loses_on_abort: bool = False  #: states: a step may write over the state that it reads
    has_token_scales: bool = False  #: K and V are fp8_e4m3 with an f32 for each token and head
    index_dim: int = 0  #: elements of a token's key in a sparse-attention index: a multiple of 4 up to 128; 0: none


@dataclass(kw_only=True)
class CacheOptions:
    """Options of a cache. Exactly one of num_blocks, budget_bytes and all_free_but_bytes is set.

    With groups, num_layers, num_kv_heads, head_dim, block_size, window_tokens and dtype are not used,
    and num_blocks counts pages.
    """

    num_layers: int = 0  #: 1 .. 4096
    num_kv_heads: int = 0  #: 1 .. 4096
    head_dim: int = 0  #: 1 .. 4096
    head_dim_v: int = 0  #: 1 .. 4096; 0: the same as head_dim
    block_size: int = 0  #: 1 .. 65536; 0: 16
    num_blocks: int = 0  #: the pool's size; exactly one of these three is set
    budget_bytes: int = 0  #: as many blocks as fit into this many bytes
    all_free_but_bytes: int = 0  #: all free memory of the device but this; -1: but nothing
    num_q_heads: int  #: query heads of attend; a multiple of the KV heads
    max_sequences: int = 0  #: sequences at a time; 0: 1024
    max_sequence_tokens: int = 0  #: tokens of one sequence; 0: as many as the pool holds
    max_step_tokens: int = 0  #: new tokens in a step; 0: 8192
    max_batch_blocks: int = (
        0  #: kept blocks of all rows of a step in one group; 0: 4 x the most that the pool holds
    )
    watermark_blocks: int = 0  #: admission leaves at least this many available
    max_fence_entries: int = 0  #: references that wait for tickets; 0: 64 x num_blocks
    max_table_pages: int = 0  #: pages of 128 table entries; 0: enough for 64 x num_blocks
    audit_blocks_per_step: int = 0  #: blocks checked in each step; 0: 64; -1: none
    batch_invariant_tokens: int = 0  #: not 0: a sequence's bits do not depend on the rest of its step, which has at most so many tokens together
    max_batch_rows: int = 0  #: sequences in a step; 0: max_sequences
    window_tokens: int = 0  #: sliding window of windowed attend calls; 0: none
    steps_in_flight: int = 0  #: step n waits for step n - k, 1 .. 16; 0: 2
    max_open_tickets: int = 0  #: tickets that have not retired, 1 .. 65536; 0: 64
    num_threads: int = 0  #: host: attention threads; 0: one a core
    max_decode_tokens: int = 0  #: CUDA: most tokens of a recorded row, 1 .. 16; 0: 1
    max_shared_rows: int = 0  #: CUDA: sequences of a step that may read common leading blocks together, at most 4096; 0: 256; -1: none
    draft_trees: bool = False  #: attend's tree_mask may be set
    max_pins: int = 0  #: pins at a time, at most 2^24; 0: 64; -1: none
    eager_retire: bool = False  #: retire tickets as soon as their work has completed
    prefix_cache: bool = False  #: sequences that begin with the same tokens share blocks
    prefix_extra_keys: int = 0  #: extra keys that a sequence may have, 0 .. 31
    prefix_history: int = (
        0  #: newest removals and registrations that Prefix.stop knows; 0: one for each 16 blocks
    )
    prefix_key_low: int = 0  #: the key of the hash, for runs that can be repeated
    prefix_key_high: int = 0  #: its other half; both 0: drawn at create
    prefix_accounts: int = 0  #: salts that may have an account at a time, 0 .. 2^20; not 0: each block costs 12 bytes more
    prefix_ghost_blocks: int = 0  #: ids of the largest ghost cache, 4 .. 2^24; 0: no ghosts
    prefix_share_parts: bool = False  #: a sequence may begin with the first tokens of a cached block whose other tokens differ; its first append copies them
    prefix_duplicates: str = (
        "duplicate"  #: or "share", "wait": when two sequences compute one block
    )
    eviction: str = (
        "tail_first"  #: or "head_first", "fifo", "lfu", "priority": which cached block goes first
    )
    dtype: Any = "f16"  #: of K and V: "f16", "bf16", "f32", "fp8_e4m3", or torch's types
    tile_order: str = "best"  #: "best", "rows" or "chunked"
    block_order: str = "block_major"  #: or "layer_major"
    scrub: str = "never"  #: or "on_owner_change", "always": when zeros are written behind tokens
    stream: Any = None  #: CUDA: of the first step; None: the cache creates one
    name: str | None = None  #: for logs, violations and health
    log: Callable[[Operation], None] | None = None  #: receives every mutating call
    prefix_events: Callable[[PrefixEvent], None] | None = (
        None  #: receives what the prefix cache stores and removes; must not call the cache
    )
    groups: Sequence[LayerGroup] = ()  #: layers that keep different data, in one pool of pages
    checkpoint_every_tokens: int = 0  #: with groups of states: kept at multiples of this length; 0: 2,048; -1: only where the engine says so
    page_sequence_tokens: int = 0  #: with groups: the page is chosen for sequences of up to so many tokens; 0: max_sequence_tokens, or 131,072


@dataclass(kw_only=True)
class KernelsOptions:
    """The largest step that kernels serve, and the pool that they read."""

    num_kv_heads: int  #: 1 .. 4096
    head_dim: int  #: 1 .. 4096
    head_dim_v: int = 0  #: 1 .. 4096; 0: the same as head_dim
    block_size: int = 0  #: 1 .. 65536; 0: 16
    num_q_heads: int  #: a multiple of the KV heads
    max_rows: int  #: sequences of a step, 1 .. 2^20
    max_q_tokens: int  #: new tokens of a step
    num_blocks: int  #: blocks of the pool
    batch_invariant_tokens: int = 0  #: as in CacheOptions
    max_decode_tokens: int = 0  #: 1 .. 16; 0: 1
    max_shared_rows: int = 0  #: sequences that may read common leading blocks together; 0: none
    window_tokens: int = 0  #: of calls with `windowed`; 0: none
    draft_trees: bool = False  #: attend's tree_mask may be set
    num_threads: int = 0  #: host: attention threads; 0: one a core
    value_in_key: bool = False  #: V is the leading head_dim_v elements of K: a latent
    dtype: Any = "f16"  #: of the pool: "f16", "bf16", "f32", "fp8_e4m3", "latent_fp8", or torch's types
    tile_order: str = "rows"  #: of the pool: "rows" or "chunked"


@dataclass(kw_only=True)
class MonitorOptions:
    """Options of a health monitor. Times are nanoseconds."""

    period_ns: int = 0  #: from one check to the next; 0: 60 s
    pressure_period_ns: int = 0  #: from one look to the next; 0: 1 s; -1: with checks
    check_limit_ns: int = 0  #: a longer check is stuck; 0: 30 s or the period
    ticket_limit_ns: int = 0  #: a ticket open for longer is late; 0: 30 s
    holder_grace_ns: int = 0  #: a holder this long past its deadline is late
    step_limit_ns: int = 0  #: an engine without a step for longer is stuck; 0: 30 s
    drift_warning_bytes: int = 0  #: logged past this; 0: 512 MiB; -1: never
    drift_limit_bytes: int = 0  #: a reason past this; 0: never
    blocks_elevated: float = 0.0  #: share of available blocks; 0: 0.20
    blocks_critical: float = 0.0  #: 0: 0.05
    vram_elevated: float = 0.0  #: share of free VRAM; 0: 0.05
    vram_critical: float = 0.0  #: 0: 0.01
    vram_exhausted: float = 0.0  #: 0: 0.001
    hysteresis: float = 0.0  #: 0: 0.02
    ignore_vram: bool = False  #: free VRAM does not count
    no_thread: bool = False  #: checks are made only by kvarena_monitor_check
    serve_http: bool = False  #: start the HTTP server
    http_port: int = 0  #: 0: any free port
    http_max_connections: int = 0  #: 1 .. 1024; 0: 32
    http_request_limit_ms: int = 0  #: 10 .. 600000; 0: 5000
    http_max_request_bytes: int = 0  #: 256 .. 1 MiB; 0: 8 KiB
    http_address: str | None = None  #: None: "127.0.0.1"; another than loopback needs a token
    http_token: str | None = None  #: 16 .. 256 letters, digits and -._~+/=; None: none
