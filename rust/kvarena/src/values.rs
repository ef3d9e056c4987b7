//! Enumerations and ids of the header.

enumeration! {
    /// The type of an element.
    Dtype {
        /// IEEE half.
        F16 = KVARENA_F16,
        /// bfloat16.
        Bf16 = KVARENA_BF16,
        /// IEEE single.
        F32 = KVARENA_F32,
        /// Layouts on CUDA only.
        Fp8E4m3 = KVARENA_FP8_E4M3,
        /// Layouts only.
        Int8 = KVARENA_INT8,
        /// Groups and kernels on CUDA only: latents of 576 elements in 656 bytes.
        LatentFp8 = KVARENA_LATENT_FP8,
    }
}

enumeration! {
    /// The order of elements inside one head's tile of a block.
    TileOrder {
        /// Chunked on CUDA where the layout permits it, else rows.
        Best = KVARENA_TILE_BEST,
        /// Plain `[block_size, head_dim]`.
        Rows = KVARENA_TILE_ROWS,
        /// The order of the tensor cores' operands.
        Chunked = KVARENA_TILE_CHUNKED,
    }
}

enumeration! {
    /// The order of planes and blocks in a pool.
    BlockOrder {
        /// All planes of a block lie together.
        BlockMajor = KVARENA_BLOCK_MAJOR,
        /// All blocks of a plane lie together.
        LayerMajor = KVARENA_LAYER_MAJOR,
    }
}

enumeration! {
    /// What a plane keeps.
    PlaneKind {
        /// K.
        Key = KVARENA_KEY,
        /// V.
        Value = KVARENA_VALUE,
        /// The keys of a sparse-attention index; in a cache with groups.
        Index = KVARENA_INDEX,
    }
}

enumeration! {
    /// The tokens of a sequence that a group of layers keeps.
    GroupKind {
        /// All tokens.
        Full = KVARENA_GROUP_FULL,
        /// The last `limit_tokens` tokens.
        Window = KVARENA_GROUP_WINDOW,
        /// The aligned chunk of `limit_tokens` tokens that has the last token.
        Chunk = KVARENA_GROUP_CHUNK,
        /// One state of fixed size, which each token changes.
        State = KVARENA_GROUP_STATE,
        /// The tokens of an encoder, at most `limit_tokens`.
        Cross = KVARENA_GROUP_CROSS,
    }
}

enumeration! {
    /// How a kernel of states works.
    StateMode {
        /// It reads and writes one slot.
        InPlace = KVARENA_STATE_IN_PLACE,
        /// It reads one slot and writes another, and takes zeros for -1.
        ReadWrite = KVARENA_STATE_READ_WRITE,
    }
}

enumeration! {
    /// When a cache writes zeros behind the tokens of a sequence.
    Scrub {
        /// A block keeps its old bytes.
        Never = KVARENA_SCRUB_NEVER,
        /// Except when all content of the block has the same owner.
        OnOwnerChange = KVARENA_SCRUB_ON_OWNER_CHANGE,
        /// Always.
        Always = KVARENA_SCRUB_ALWAYS,
    }
}

enumeration! {
    /// Which blocks an allocation may use.
    Urgency {
        /// What the call's description says.
        Default = KVARENA_URGENCY_DEFAULT,
        /// A running sequence grows: all blocks that are not promised to others.
        Growth = KVARENA_GROWTH,
        /// New work: the watermark stays available.
        Admission = KVARENA_ADMISSION,
    }
}

enumeration! {
    /// The state of a block.
    BlockState {
        /// Nobody holds it, and its content is not kept.
        Free = KVARENA_BLOCK_FREE,
        /// It has a reference that is not fenced.
        Referenced = KVARENA_BLOCK_REFERENCED,
        /// It has only references whose ticket has not retired.
        Fenced = KVARENA_BLOCK_FENCED,
        /// Nobody holds it, and its content is cached.
        Evictable = KVARENA_BLOCK_EVICTABLE,
        /// Out of service.
        Offline = KVARENA_BLOCK_OFFLINE,
        /// Its page is not carved into blocks of its group.
        Absent = KVARENA_BLOCK_ABSENT,
    }
}

enumeration! {
    /// What is known of a block's content.
    BlockContent {
        /// Only the block's holders rely on its bytes.
        Unwritten = KVARENA_CONTENT_UNWRITTEN,
        /// Others may find it later; not yet readable.
        BeingWritten = KVARENA_CONTENT_BEING_WRITTEN,
        /// Complete and open to others; never rewritten.
        Published = KVARENA_CONTENT_PUBLISHED,
        /// Writing it failed.
        Failed = KVARENA_CONTENT_FAILED,
    }
}

enumeration! {
    /// The state of a sequence whose tokens others write.
    ImportState {
        /// No import, or one that was published.
        None = KVARENA_IMPORT_NONE,
        /// Others write its blocks.
        Filling = KVARENA_IMPORT_FILLING,
        /// Others gave up; only destroy is left.
        Failed = KVARENA_IMPORT_FAILED,
    }
}

enumeration! {
    /// Which cached block goes first.
    Eviction {
        /// Least recently used; of a sequence its tail before its head.
        TailFirst = KVARENA_TAIL_FIRST,
        /// The same; of a sequence its head before its tail.
        HeadFirst = KVARENA_HEAD_FIRST,
        /// That became evictable for the first time first.
        Fifo = KVARENA_FIFO,
        /// Used least often.
        Lfu = KVARENA_LFU,
        /// Of the lowest priority.
        Priority = KVARENA_EVICT_PRIORITY,
    }
}

enumeration! {
    /// What is done when two sequences compute the same block at the same time.
    Duplicates {
        /// Each computes and keeps its own block; the first is registered.
        Duplicate = KVARENA_DUPLICATE,
        /// The second gives its own up when both are published.
        Share = KVARENA_SHARE_DUPLICATE,
        /// The second cannot begin until the first has published.
        Wait = KVARENA_WAIT,
    }
}

enumeration! {
    /// Why a cached prefix covers no more tokens.
    PrefixStop {
        /// All full blocks, but one token is left to compute.
        Capped = KVARENA_STOP_CAPPED,
        /// The tokens that are left do not fill a block.
        LessThanBlock = KVARENA_STOP_LESS_THAN_BLOCK,
        /// No such block is known.
        NeverSeen = KVARENA_STOP_NEVER_SEEN,
        /// It was known and is gone.
        Evicted = KVARENA_STOP_EVICTED,
        /// Known under another salt.
        OtherSalt = KVARENA_STOP_OTHER_SALT,
        /// Known under this salt with other extra keys.
        OtherExtraKey = KVARENA_STOP_OTHER_EXTRA_KEY,
        /// Another sequence computes it now.
        NotYetPublished = KVARENA_STOP_NOT_YET_PUBLISHED,
        /// A longer prefix is known, but another group of layers has not what a sequence needs there.
        OtherGroup = KVARENA_STOP_OTHER_GROUP,
    }
}

enumeration! {
    /// Why a block is not known any more.
    PrefixRemoval {
        /// An allocation took it.
        Evicted = KVARENA_REMOVED_EVICTED,
        /// A block before it went.
        WithParent = KVARENA_REMOVED_WITH_PARENT,
        /// The engine forgot it.
        Forgotten = KVARENA_REMOVED_FORGOTTEN,
        /// Cut, undone or ended before it was published.
        Aborted = KVARENA_REMOVED_ABORTED,
        /// Others took it.
        Lost = KVARENA_REMOVED_LOST,
        /// A newer block of its salt took its place.
        OverCap = KVARENA_REMOVED_OVER_CAP,
    }
}

enumeration! {
    /// What has happened to a block that can be found.
    PrefixEventKind {
        /// It was published.
        Stored = KVARENA_PREFIX_STORED,
        /// It cannot be found any more.
        Removed = KVARENA_PREFIX_REMOVED,
        /// All blocks have gone at once.
        Cleared = KVARENA_PREFIX_CLEARED,
    }
}

enumeration! {
    /// What an allocation is for.
    Purpose {
        /// Weights of a model.
        ModelWeights = KVARENA_MODEL_WEIGHTS,
        /// K and V.
        KvCache = KVARENA_KV_CACHE,
        /// Workspaces and other buffers.
        IntermediateBuffers = KVARENA_INTERMEDIATE_BUFFERS,
        /// Something else.
        Other = KVARENA_PURPOSE_UNKNOWN,
    }
}

enumeration! {
    /// Which kind of memory an allocation must be.
    MemoryKind {
        /// VRAM, or the host device's own memory.
        Device = KVARENA_MEMORY_DEVICE,
        /// Page-locked host memory; never for KV or weights.
        Staging = KVARENA_MEMORY_STAGING,
    }
}

enumeration! {
    /// Where memory lies, according to the driver.
    Place {
        /// Device-local memory of this GPU.
        Vram = KVARENA_PLACE_VRAM,
        /// Device-local memory of another GPU.
        OtherDevice = KVARENA_PLACE_OTHER_DEVICE,
        /// An integrated GPU's memory, which is the machine's.
        Integrated = KVARENA_PLACE_INTEGRATED,
        /// Unified memory, which can migrate.
        Managed = KVARENA_PLACE_MANAGED,
        /// Page-locked host memory.
        PinnedHost = KVARENA_PLACE_PINNED_HOST,
        /// Host memory that the driver does not know.
        PageableHost = KVARENA_PLACE_PAGEABLE_HOST,
        /// Memory that a host device allocated.
        HostDevice = KVARENA_PLACE_HOST_DEVICE,
        /// The range is not one allocation.
        Mixed = KVARENA_PLACE_MIXED,
    }
}

enumeration! {
    /// The severity of a log line.
    LogLevel {
        /// Every allocation.
        Debug = KVARENA_LOG_DEBUG,
        /// What an operator wants to know.
        Info = KVARENA_LOG_INFO,
        /// Something is not as it should be.
        Warning = KVARENA_LOG_WARNING,
        /// Something failed.
        Error = KVARENA_LOG_ERROR,
        /// Accounts or memory are violated.
        Critical = KVARENA_LOG_CRITICAL,
        /// No lines.
        Off = KVARENA_LOG_OFF,
    }
}

enumeration! {
    /// The mutating calls of a block manager.
    OperationKind {
        /// A holder has begun.
        RegisterHolder = KVARENA_OPERATION_REGISTER_HOLDER,
        /// A holder has ended.
        UnregisterHolder = KVARENA_OPERATION_UNREGISTER_HOLDER,
        /// Blocks were promised.
        Reserve = KVARENA_OPERATION_RESERVE,
        /// Blocks were taken.
        Allocate = KVARENA_OPERATION_ALLOCATE,
        /// References were added.
        Retain = KVARENA_OPERATION_RETAIN,
        /// References were given up.
        Release = KVARENA_OPERATION_RELEASE,
        /// References were fenced.
        ReleaseAfter = KVARENA_OPERATION_RELEASE_AFTER,
        /// What is known of a content has changed.
        SetContent = KVARENA_OPERATION_SET_CONTENT,
        /// A block leaves service.
        Quarantine = KVARENA_OPERATION_QUARANTINE,
        /// A block returns to service.
        Restore = KVARENA_OPERATION_RESTORE,
        /// A ticket was opened.
        OpenTicket = KVARENA_OPERATION_OPEN_TICKET,
        /// A ticket has retired.
        Retire = KVARENA_OPERATION_RETIRE,
        /// How long a block should stay was said.
        SetRetention = KVARENA_OPERATION_SET_RETENTION,
        /// The clock of retentions went on.
        AdvanceClock = KVARENA_OPERATION_ADVANCE_CLOCK,
    }
}

id! {
    /// A sequence of one cache. Its number counts within the cache: ranks that make the same calls
    /// have the same numbers.
    Sequence
}

id! {
    /// Queued work that still uses blocks, of one cache or pool.
    Ticket
}

id! {
    /// A registered holder of block references, of one cache or pool: a sequence, a pin, or what an
    /// engine with tables of its own registers.
    Holder
}

pub(crate) fn raw_ticket(ticket: Option<Ticket>) -> u64 {
    ticket.map_or(0, Ticket::raw)
}
