"""What the library answers: named tuples, which pickle and compare by value."""

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from kvarena._core import PrefixPosition


class SupportsDLPack(Protocol):
    """Memory with DLPack: what every array library takes with `from_dlpack`."""

    def __dlpack__(self) -> object: ...

    def __dlpack_device__(self) -> tuple[int, int]: ...


class HolderReport(NamedTuple):
    """A holder of blocks."""

    holder: int  #: id
    sequence: int  #: the sequence's id, or the holder's own number; 0: none
    owner: int  #: for whom it holds; 0: unknown
    purpose: str
    references: int  #: block references that it has
    reserved: int  #: blocks promised to it
    since_ns: int  #: as registered
    deadline_ns: int  #: as registered


class SaltShare(NamedTuple):
    """Cached blocks of one salt."""

    salt: int  #: the tenant
    blocks: int  #: evictable


class Explanation(NamedTuple):
    """Why a request fits or does not fit.

    With groups, figures are pages: all but the counts by state and `num_blocks`, which are blocks of
    all groups, and references of holders.
    """

    requested: int  #: blocks asked for
    usable: int  #: blocks that this request may use
    promised: int  #: the part of `usable` that was promised
    missing: int  #: that must come back before it fits
    num_blocks: int  #: of the pool
    free: int  #: by state
    referenced: int  #: by state
    fenced: int  #: by state
    evictable: int  #: by state
    offline: int  #: by state
    reserved_blocks: int  #: promised to holders
    watermark: int  #: blocks that admission leaves available
    fenced_returning: int  #: that come back when all tickets retire
    oldest_open_ticket: int  #: the one to wait for; 0: none is open
    urgency: str  #: "growth" or "admission"
    fits: bool  #: the blocks can be had
    largest: tuple[HolderReport, ...]  #: the largest holders
    returning: tuple[
        int, ...
    ]  #: blocks that come back when largest[0] .. largest[i] end; -1: unknown
    evictable_salts: tuple[
        SaltShare, ...
    ]  #: what eviction would give, and from whom: most blocks first; with accounts the salts that have one
    evictable_of_others: int  #: evictable blocks of all others; 0 of a pool


class Stats(NamedTuple):
    """The figures of a cache or pool; a pool has no tables and no steps."""

    num_blocks: int  #: free + referenced + fenced + evictable + offline
    free: int  #: by state
    referenced: int  #: by state
    fenced: int  #: by state
    evictable: int  #: by state
    offline: int  #: by state
    reserved_blocks: int  #: promised; still part of free + evictable
    watermark: int  #: blocks that admission leaves available
    holders: int  #: registered holders
    references: int  #: of all holders, without fenced ones
    fence_entries: int  #: references that wait for tickets
    peak_allocated: int  #: the most blocks that were not free at one time
    holders_ever: int  #: since create
    allocations: int  #: blocks handed out since create
    releases: int  #: references given up since create
    evictions: int  #: evictable blocks handed out since create
    exhaustions: int  #: calls refused since create because blocks were missing
    sequences: int  #: existing sequences
    tokens: int  #: sum of their lengths
    entries: int  #: block references in tables
    waste_tokens: int  #: slots in tables behind the end of their sequence
    pages_used: int  #: pages of entries in use
    pages_total: int  #: pages of entries there are
    sequences_ever: int  #: since create
    copies_on_write: int  #: since create
    open_tickets: int  #: tickets that have not retired
    oldest_ticket: int  #: 0: none is open
    step: int  #: steps ended
    published_ns: int  #: time of the last publication
    steps_lost: int  #: ended steps that the device did not take
    missed_launches: int  #: launches that found no step to run
    awaited_tickets: int  #: open tickets for which a later step waits
    audit_blocks: int  #: blocks checked by the audit since create
    audit_passes: int  #: complete passes of the audit
    pins: int  #: existing pins
    pinned_entries: int  #: block references of pins; not part of `entries`
    audit_failure: str  #: the code of the audit's first failure; "ok": none


class SequenceInfo(NamedTuple):
    """One sequence's figures."""

    length: int  #: tokens
    num_blocks: int  #: entries in its table, with reserved capacity
    max_length: int  #: 0: none
    waste_tokens: int  #: num_blocks * block_size - length
    since_ns: int  #: as given
    deadline_ns: int  #: as given, or set since
    owner: int  #: whose content it is; never 0
    holder: int  #: the holder of its block references
    import_state: str  #: "none", "filling" or "failed"
    known_tokens: int  #: leading tokens whose values the prefix cache was told
    registered_blocks: int  #: leading blocks that the prefix cache knows
    published_blocks: int  #: of these, those that others can find


class Prefix(NamedTuple):
    """The longest cached prefix of some tokens."""

    tokens: int  #: covered
    blocks: int  #: covered to their ends
    stop: str  #: why not more: "capped" (one token is left to compute), "less_than_a_block", "never_seen", "evicted", "other_salt", "other_extra_key", "not_yet_published" or "other_group"
    removal: (
        str | None
    )  #: stop "evicted": "evicted", "parent_removed", "forgotten", "aborted", "lost" or "over_cap"
    removal_serial: int  #: stop "evicted": the removal, as PrefixStats.removals counts them
    pending_block: int  #: stop "not_yet_published": the block that is waited for; else -1
    registered_tokens: int  #: covered in the group of layers that keeps all tokens
    part_tokens: int  #: of `tokens`, those of a part of one more block, with CacheOptions.prefix_share_parts
    removal_by: int  #: stop "evicted": the sequence that took the block, if it has the query's salt and that is still known; else 0
    removal_time: int  #: removal "evicted": the time of Cache.advance_clock when the block was taken; else 0, also when it is not known any more


class PrefixStats(NamedTuple):
    """The figures of a prefix cache. Counters count since create."""

    registered: int  #: blocks that are known now
    published: int  #: of these, those that can be found
    registrations: int  #: blocks ever known
    removals: int  #: blocks that ceased to be known
    queries: int  #: sequences created with tokens, and calls of Sequence.adopt
    query_tokens: int  #: tokens of these
    hits: int  #: queries of which at least a block was covered
    hit_blocks: int  #: blocks covered
    hit_tokens: int  #: tokens covered
    duplicates: int  #: blocks computed while an equal one was known
    shared: int  #: of these, those given up for the known one
    broken_chains: int  #: sequences that stopped to register blocks
    stops: dict[str, int]  #: queries by Prefix.stop
    removals_by: dict[str, int]  #: removals by Prefix.removal


class PrefixHistogram(NamedTuple):
    """Counts of times. A time is the number of blocks that the cache has registered meanwhile."""

    counts: tuple[
        int, ...
    ]  #: entry i: times above 4**(i - 1) and up to 4**i; the first one also 0, the last one all others too
    sum: int  #: of all times


class Ghost(NamedTuple):
    """What a cache of another size or policy would find."""

    policy: str  #: as CacheOptions.eviction
    half_pools: int  #: its size in halves of the pool: 2 is as large as the pool
    hits_ppm: int  #: hits of a million block references


class PrefixUse(NamedTuple):
    """How a prefix cache is used, since create."""

    lifetime: PrefixHistogram  #: of blocks that could be found, until they go
    idle: PrefixHistogram  #: of an evicted block, since it was last registered or found
    reuse_gap: PrefixHistogram  #: of a block that is found, the same
    ghost_sampled_ppm: int  #: of a million block ids, those that the ghosts see
    ghost_references: int  #: block references observed
    ghosts: tuple[Ghost, ...]  #: by policy and size; none without CacheOptions.prefix_ghost_blocks


class PrefixEvent(NamedTuple):
    """What has happened to a block that can be found.

    The events since create, or since the last "cleared", are enough to rebuild elsewhere which prefixes
    are cached.
    """

    number: int  #: 1, 2, 3 ... without a gap
    kind: str  #: "stored", "removed" or "cleared" (all blocks have gone at once)
    block: int  #: the block, which has this name until it is removed; "cleared": -1
    parent: int  #: "stored": the block before it, which may be stored later; -1: none
    salt: int  #: "stored": the tenant
    tokens: tuple[int, ...]  #: "stored": of the block
    #: "stored": those that begin in the block, and their first tokens, counted from the block's
    extra_keys: tuple[tuple[int, int], ...]
    removal: str | None  #: "removed": why, as Prefix.removal


class SaltInfo(NamedTuple):
    """The account of a salt."""

    registered: int  #: blocks that its sequences have registered
    kept: int  #: of these, those that the floor keeps
    sequences: int  #: that exist
    floor_blocks: int  #: as set
    cap_blocks: int  #: as set; 0: none


class DeviceInfo(NamedTuple):
    """Facts about a device."""

    total_bytes: int  #: all memory; the capacity of a host device
    free_bytes: int  #: what the driver can give now, next to other processes
    tracked_bytes: int  #: recorded by this device, of kind device
    staging_bytes: int  #: recorded by this device, of kind staging
    overhead_bytes: int  #: used when the device was opened: contexts, other processes
    bounce_bytes: int  #: as in kvarena_cuda_options; 0 on the host
    ordinal: int  #: of the GPU; -1 on the host
    compute_capability: int  #: 10 * major + minor; 0 on the host
    num_sms: int  #: multiprocessors; 0 on the host
    lost_to: int  #: the sticky CUDA error by which the device was lost, or 0
    is_cuda: bool  #: a GPU
    allows_host: bool  #: host memory is accepted for KV and weights


class Footprint(NamedTuple):
    """The memory that a cache takes."""

    num_blocks: int  #: blocks in the pool
    pool_bytes: int  #: of all blocks
    workspace_bytes: int  #: of all attention workspaces
    table_bytes: int  #: of the step's block tables on CUDA
    staging_bytes: int  #: pinned host memory on CUDA
    device_bytes: int  #: pool, workspaces and tables
    host_bytes: int  #: of block manager and tables; an upper bound
    device_allocations: int  #: of device memory
    staging_allocations: int  #: of pinned host memory


class PageStats(NamedTuple):
    """Figures of the pages of a pool that groups share. Without groups a page is a block."""

    page_bytes: int  #: bytes of a page
    num_pages: int  #: all pages
    free: int  #: of no group
    of_groups: int  #: carved into blocks of a group
    offline: int  #: out of service
    evictable: int  #: the part of `of_groups` that can be turned: no block is held
    reserved: int  #: promised to holders; still part of free + evictable
    watermark: int  #: pages that admission leaves available
    peak_used: int  #: the most pages that were not free at one time
    turned: int  #: pages carved since create


class PartStats(NamedTuple):
    """Blocks with ids and tables of their own in a cache with groups: a group, or a part of one."""

    group: int  #: index in the options' groups
    block_size: int  #: tokens of a block
    block_bytes: int  #: bytes of a block
    blocks_per_page: int  #: in a page that the part has
    pages: int  #: carved for the part
    free: int  #: blocks by state
    referenced: int  #: blocks by state
    fenced: int  #: blocks by state
    evictable: int  #: blocks by state
    offline: int  #: blocks by state
    stranded: int  #: the part of `free` that only this part of the pool can use now


class StateView(NamedTuple):
    """The states of one recurrent layer."""

    planes: list[SupportsDLPack]  #: each [num_slots, *shape], in the memory of the pool
    group: int  #: the argument of Step.states
    part: int  #: which of the slots of a state has the layer


class StateSlots(NamedTuple):
    """The slots of a group of states in a step; lists by row of the demands."""

    read: list[list[int]]  #: [rows][parts] before the step; -1: zeros
    write: list[list[int]]  #: [rows][parts] after it; -1: the row has no new tokens
    extra_offsets: list[int]  #: [rows + 1] the extras of row r begin at entry r
    extra_tokens: list[int]  #: [extras] after which new token of the row, from 0
    extra_slots: list[list[int]]  #: [extras][parts] where that state is to be written too
    part: int  #: the part of the pool, for group_blocks
    # The same in memory of the device, int32, for kernels on the step's stream. On CUDA the addresses
    # are the same in every step and in a recording, which has empty lists.
    device_read: SupportsDLPack  #: [rows, parts]
    device_write: SupportsDLPack  #: [rows, parts]
    device_extra_offsets: SupportsDLPack  #: [rows + 1]
    device_extra_tokens: SupportsDLPack  #: [most extras of a step]
    device_extra_slots: SupportsDLPack  #: [most extras of a step, parts]


class BlockInfo(NamedTuple):
    """What is known of one block."""

    generation: int  #: how often it has been handed out before
    reference_count: int  #: references that are not fenced
    claims: int  #: claims on its bytes; a holder may write in place when it is 1
    state: str  #: "free", "referenced", "fenced", "evictable", "offline", or "absent": its page is not carved into blocks of its group
    content: str  #: "unwritten", "being_written", "published" or "failed"
    priority: int  #: of the retention that is in force; 35: the usual one
    expires_at: int  #: when the retention ends; 0: never


class Operation(NamedTuple):
    """One mutating call of the block manager, with its outcome."""

    kind: str  #: such as "allocate"
    outcome: str  #: the name of a status code, such as "ok"
    holder: int  #: argument, or result of register_holder
    ticket: int  #: a number that rises from ticket to ticket; 0: none
    num_blocks: int  #: asked for, or reserved
    flag: int  #: allocate, reserve: 0 growth, 1 admission; set_content: the content
    blocks: tuple[int, ...]  #: arguments, or the result of allocate
    group: int = 0  #: allocate: whose blocks; 0 in a pool without groups
    left_in_call: int = 0  #: allocate with groups: entries of the same call that follow this one


class Allocation(NamedTuple):
    """Blocks that an allocation took. A block is named by its id and its generation."""

    blocks: list[int]  #: ids
    generations: list[int]  #: of each
    evicted: int  #: the last so many were cached until now: forget what was found in them


class Adoption(NamedTuple):
    """The cached blocks with which a sequence begins, and where it goes on."""

    prefix: Prefix  #: what was found
    blocks: list[int]  #: ids; the holder has a reference on each
    generations: list[int]  #: of each
    position: "PrefixPosition"  #: behind them, for `register`


class PoolPlan(NamedTuple):
    """The sizes of a pool in memory of the engine's."""

    num_blocks: int  #: blocks
    pool_bytes: int  #: of all blocks
    slack_bytes: int  #: unused bytes of the budget
    block_bytes: int  #: of one block, all layers, with padding
    bytes_per_token: int  #: in all layers, without padding


class LayerView(NamedTuple):
    """K and V of one layer of the pool.

    In rows order each is [num_blocks, num_heads, block_size, head_dim]. The chunked order has no strides:
    [num_blocks, num_heads, block_size * head_dim]. fp8 has its bytes as uint8; of latent_fp8 both are rows
    of 656 bytes.
    """

    key: SupportsDLPack
    value: SupportsDLPack
    tile_order: str  #: "rows" or "chunked"
    key_scales: SupportsDLPack | None = None  #: [num_blocks, num_heads, block_size] float32, with has_token_scales
    value_scales: SupportsDLPack | None = None  #: the same of V


class IndexView(NamedTuple):
    """The keys of a sparse-attention index of one layer: the value of an element is element * scale."""

    keys: SupportsDLPack  #: [num_blocks, block_size, index_dim] uint8: the bytes of fp8_e4m3
    scales: SupportsDLPack  #: [num_blocks, block_size] float32


class DeviceBatch(NamedTuple):
    """What a step put on the device, for attention kernels of the engine's own.

    The table of row r begins at block_tables[row_offsets[r]], which is row_slots[r] * table_stride. In a
    recording, rows behind those of the step that runs are skipped: row_slots -1, length 0.
    """

    block_tables: SupportsDLPack  #: int32; entries behind the blocks of a row, or in front of its kept ones, have no meaning
    table_stride: int  #: entries
    row_slots: SupportsDLPack  #: [num_rows] int32, in units of table_stride; -1: skip
    row_offsets: SupportsDLPack  #: [num_rows] int64, entries
    lengths: SupportsDLPack  #: [num_rows] int32, tokens with the new ones
    num_blocks: SupportsDLPack  #: [num_rows] int32, blocks that hold them
    q_offsets: SupportsDLPack  #: [num_rows + 1] int64, first new token of each row
    slots: SupportsDLPack  #: [num_tokens] int64; -1: skip
    num_rows: int  #: in a recording of the largest step
    num_tokens: int  #: new ones; in a recording of the largest step
    max_length: int  #: of a row; in a recording the most that any step may have
    max_new_tokens: int  #: of a row
