//! Caches whose layers keep different data, in one pool of pages.

use crate::cache::{Cache, Shape};
use crate::convert::list_of;
use crate::prefix::Prompt;
use crate::sequence::SequenceOptions;
use crate::slices::{check_length, check_scales, Element, Parts, Scales};
use crate::states::StatePlane;
use crate::status::{check, failed, Result};
use crate::step::{DeviceBatch, Recording, Step};
use crate::sys;
use crate::values::{Dtype, GroupKind, Sequence, StateMode};
use std::collections::HashMap;
use std::os::raw::c_void;

/// K and V of a sequence's encoder for one layer, by pointers to memory of the cache's device.
pub use crate::sys::kvarena_write_cross_args as WriteCrossArgs;

/// Keys of a sparse-attention index for one layer, by a pointer to memory of the cache's device.
pub use crate::sys::kvarena_write_index_args as WriteIndexArgs;

/// One layer of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupLayer {
    /// The model's layer, 0 .. 4095.
    pub layer: i32,
    /// A layer of the same group whose K and V this one reads; it writes nothing then.
    pub reads_layer: Option<i32>,
}

impl From<i32> for GroupLayer {
    /// A layer with K and V of its own.
    fn from(layer: i32) -> Self {
        Self { layer, reads_layer: None }
    }
}

/// Layers that keep the same data. Zero means the default.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LayerGroup {
    /// The tokens that are kept.
    pub kind: GroupKind,
    /// At least one with K and V of its own.
    pub layers: Vec<GroupLayer>,
    /// Of windows, chunks and encoders.
    pub limit_tokens: i64,
    /// 1 .. 4096.
    pub num_kv_heads: i32,
    /// 1 .. 4096.
    pub head_dim_k: i32,
    /// 1 .. 4096; 0: the same as `head_dim_k`.
    pub head_dim_v: i32,
    /// Of K.
    pub dtype: Dtype,
    /// Of V; without it that of K.
    pub dtype_v: Option<Dtype>,
    /// V is the leading `head_dim_v` elements of K: a latent.
    pub value_in_key: bool,
    /// 1 .. 65536; 0: 16.
    pub block_size_tokens: i32,
    /// Windows and states: tokens that can be taken back.
    pub rollback_tokens: i32,
    /// States: the tensors that a layer keeps, 1 .. 8.
    pub planes: Vec<StatePlane>,
    /// States: how their kernel works.
    pub state_mode: StateMode,
    /// States: a step may write over the state that it reads, and an aborted step loses it.
    pub loses_on_abort: bool,
    /// K and V are fp8 e4m3 with an f32 for each token and head.
    pub has_token_scales: bool,
    /// Elements of a token's key in a sparse-attention index: a multiple of 4 up to 128; 0: none.
    pub index_dim: i32,
}

impl LayerGroup {
    /// The layer's sizes for slices.
    fn shape(&self, num_q_heads: i32, is_cuda: bool) -> Shape {
        let dim_v = if self.head_dim_v == 0 { self.head_dim_k } else { self.head_dim_v };
        let mut shape =
            Shape::from_heads(self.num_kv_heads, num_q_heads, self.head_dim_k, dim_v, is_cuda);
        if self.value_in_key {
            shape.value = 0;
        }
        shape.index = usize::try_from(self.index_dim).unwrap_or(0);
        shape
    }
}

/// Groups as the library takes them. The pointers are to memory of `layers`.
pub(crate) struct RawGroups {
    pub(crate) groups: Vec<sys::kvarena_layer_group>,
    #[allow(dead_code)] // borrowed by `groups`
    layers: Vec<Vec<sys::kvarena_group_layer>>,
    #[allow(dead_code)] // the same
    planes: Vec<Vec<sys::kvarena_state_plane>>,
}

impl RawGroups {
    pub(crate) fn of(groups: &[LayerGroup]) -> Self {
        let layers: Vec<Vec<_>> = groups
            .iter()
            .map(|group| {
                let raw = |l: &GroupLayer| sys::kvarena_group_layer {
                    layer: l.layer,
                    reads_layer: l.reads_layer.unwrap_or(l.layer),
                };
                group.layers.iter().map(raw).collect()
            })
            .collect();
        let planes: Vec<Vec<_>> =
            groups.iter().map(|g| g.planes.iter().map(StatePlane::raw).collect()).collect();
        let raw =
            |((group, its), planes): ((&LayerGroup, &Vec<_>), &Vec<_>)| sys::kvarena_layer_group {
                layers: its.as_ptr(),
                limit_tokens: group.limit_tokens,
                num_layers: i32::try_from(its.len()).unwrap_or(i32::MAX),
                kind: group.kind.into(),
                num_kv_heads: group.num_kv_heads,
                head_dim_k: group.head_dim_k,
                head_dim_v: group.head_dim_v,
                dtype: group.dtype.into(),
                has_dtype_v: group.dtype_v.is_some().into(),
                dtype_v: group.dtype_v.unwrap_or_default().into(),
                value_in_key: group.value_in_key.into(),
                block_size_tokens: group.block_size_tokens,
                rollback_tokens: group.rollback_tokens,
                num_planes: i32::try_from(planes.len()).unwrap_or(i32::MAX),
                planes: planes.as_ptr(),
                state_mode: group.state_mode.into(),
                loses_on_abort: group.loses_on_abort.into(),
                has_token_scales: group.has_token_scales.into(),
                index_dim: group.index_dim,
                ..Default::default()
            };
        Self { groups: groups.iter().zip(&layers).zip(&planes).map(raw).collect(), layers, planes }
    }
}

/// The sizes of each layer's slices.
pub(crate) fn shapes_of(
    groups: &[LayerGroup],
    num_q_heads: i32,
    is_cuda: bool,
) -> HashMap<i32, Shape> {
    let its = |g: &LayerGroup| {
        let shape = g.shape(num_q_heads, is_cuda);
        g.layers.iter().map(move |l| (l.layer, shape)).collect::<Vec<_>>()
    };
    groups.iter().filter(|g| g.kind != GroupKind::State).flat_map(its).collect()
}

/// Consecutive blocks of one part's table, which somebody holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupBlocks {
    /// Index in the table.
    pub first_block: i64,
    /// Ids.
    pub blocks: Vec<i32>,
    /// Of each block, as [`BlockInfo`](crate::BlockInfo) has it.
    pub generations: Vec<u32>,
}

answer! {
    /// Figures of the pages of a pool that groups share. Without groups a page is a block.
    PageStats from kvarena_page_stats {
        /// Bytes of a page.
        page_bytes: i64,
        /// All pages.
        num_pages: i64,
        /// Of no group.
        free: i64,
        /// Carved into blocks of a group.
        of_groups: i64,
        /// Out of service.
        offline: i64,
        /// The part of `of_groups` that can be turned: no block is held.
        evictable: i64,
        /// Promised to holders; still part of free + evictable.
        reserved: i64,
        /// Pages that admission leaves available.
        watermark: i64,
        /// The most pages that were not free at one time.
        peak_used: i64,
        /// Pages carved since create.
        turned: u64,
    }
}

answer! {
    /// Blocks with ids and tables of their own in a cache with groups: a group, or a part of one.
    PartStats from kvarena_part_stats {
        /// Index in the groups given to create.
        group: i32,
        /// Tokens of a block.
        block_size_tokens: i32,
        /// Bytes of a block.
        block_bytes: i64,
        /// In a page that the part has.
        blocks_per_page: i64,
        /// Carved for the part.
        pages: i64,
        /// Blocks by state.
        free: i64,
        /// Blocks by state.
        referenced: i64,
        /// Blocks by state.
        fenced: i64,
        /// Blocks by state.
        evictable: i64,
        /// Blocks by state.
        offline: i64,
        /// The part of `free` that only this part of the pool can use now.
        stranded: i64,
    }
}

// SAFETY of the calls below: handle, options and results are valid, and slices live until the return.
impl Cache {
    /// Creates a sequence of `length_tokens` tokens from blocks that somebody holds, and takes a
    /// reference on each: one entry for each part of the pool. In each they end with the last token
    /// and begin with the oldest that a later token reads.
    pub fn create_sequence_from(
        &mut self,
        length_tokens: i64,
        parts: &[GroupBlocks],
        options: &SequenceOptions,
    ) -> Result<Sequence> {
        self.create_sequence_from_with(length_tokens, parts, &Prompt::default(), options)
    }

    /// Does what [`create_sequence_from`](Self::create_sequence_from) does, for the salt and the extra
    /// keys of a prompt without tokens. With a prefix cache, blocks that belong to another salt or to
    /// other extra keys are refused.
    pub fn create_sequence_from_with(
        &mut self,
        length_tokens: i64,
        parts: &[GroupBlocks],
        prompt: &Prompt<'_>,
        options: &SequenceOptions,
    ) -> Result<Sequence> {
        for part in parts {
            check_length(part.generations.len(), part.blocks.len())?;
        }
        let raw = |part: &GroupBlocks| sys::kvarena_group_blocks {
            first_block: part.first_block,
            blocks: part.blocks.as_ptr(),
            generations: part.generations.as_ptr(),
            num_blocks: part.blocks.len() as u64,
            ..Default::default()
        };
        let (raw, options): (Vec<_>, _) = (parts.iter().map(raw).collect(), prompt.raw(options));
        let (first, count, mut id) = (raw.as_ptr(), raw.len(), 0);
        self.check(unsafe {
            sys::kvarena_sequence_create_from(
                self.raw,
                length_tokens,
                first,
                count,
                &options,
                &mut id,
            )
        })?;
        Ok(Sequence::written(id))
    }

    /// Returns the longest length of at most `length_tokens` tokens at which the sequence can be cut
    /// or forked.
    pub fn restorable_length(&self, sequence: Sequence, length_tokens: i64) -> Result<i64> {
        let mut found = 0;
        check(unsafe {
            sys::kvarena_sequence_restorable_length(
                self.raw,
                sequence.raw(),
                length_tokens,
                &mut found,
            )
        })?;
        Ok(found)
    }

    /// Returns the blocks of a sequence in one part of the pool, from the first that is kept on. The
    /// result has no generations.
    pub fn group_blocks(&self, sequence: Sequence, part: i32) -> Result<GroupBlocks> {
        let (id, mut first_block) = (sequence.raw(), 0);
        let blocks = list_of(|out, room, count| unsafe {
            sys::kvarena_sequence_group_blocks(
                self.raw,
                id,
                part,
                out,
                room,
                count,
                &mut first_block,
            )
        })
        .map_err(failed)?;
        Ok(GroupBlocks { first_block, blocks, generations: Vec::new() })
    }

    /// Returns the counts of pages.
    pub fn pages(&self) -> Result<PageStats> {
        let mut stats = sys::kvarena_page_stats::default();
        check(unsafe { sys::kvarena_cache_pages(self.raw, &mut stats) })?;
        Ok((&stats).into())
    }

    /// Returns the counts of every part of the pool. Without groups there are none.
    pub fn parts(&self) -> Result<Vec<PartStats>> {
        let mut count = 0;
        check(unsafe { sys::kvarena_cache_num_parts(self.raw, &mut count) })?;
        let part = |index| {
            let mut stats = sys::kvarena_part_stats::default();
            check(unsafe { sys::kvarena_cache_part(self.raw, index, &mut stats) })?;
            Ok((&stats).into())
        };
        (0..count).map(part).collect()
    }
}

impl Step<'_> {
    /// Returns what the step put on the device for one part of the pool, valid until the step ends.
    pub fn group_batch(&self, part: i32) -> Result<DeviceBatch> {
        let mut batch = sys::kvarena_device_batch::default();
        // SAFETY: handle and result are valid.
        check(unsafe { sys::kvarena_step_group_batch(self.raw, part, &mut batch) })?;
        Ok(batch)
    }

    /// Writes the new tokens' keys of a sparse-attention index, for a layer with one of its own:
    /// `[num_tokens, index_dim]`.
    pub fn write_index<T: Element>(&mut self, layer: i32, key: &[T]) -> Result<()> {
        let shape = self.shape_of(layer)?;
        check_length(key.len(), self.step_tokens()? * shape.index)?;
        let mut parts = Parts::default();
        let key = parts.input(key);
        self.run_on_slices(parts, |parts, cache| {
            let args = WriteIndexArgs {
                key: parts.address::<c_void>(key),
                layer,
                dtype: T::DTYPE.into(),
                ..Default::default()
            };
            // SAFETY: the array has the size that the caller and the layout name.
            unsafe { sys::kvarena_step_write_index(cache, &args) }
        })
    }

    /// Writes K and V of a sequence's encoder, for a layer of a cross group: `[cross_tokens,
    /// num_kv_heads, head_dim]` each. The sequence is in the step and has `cross_tokens` tokens.
    pub fn write_cross<T: Element>(
        &mut self,
        layer: i32,
        sequence: Sequence,
        cross_tokens: usize,
        key: &[T],
        value: &[T],
    ) -> Result<()> {
        self.write_cross_scaled(layer, sequence, cross_tokens, key, value, None)
    }

    /// Does what `write_cross` does, into a pool of fp8. Of a layer whose V lies in K, `value` is
    /// empty.
    pub fn write_cross_scaled<T: Element>(
        &mut self,
        layer: i32,
        sequence: Sequence,
        cross_tokens: usize,
        key: &[T],
        value: &[T],
        scales: Option<Scales<'_>>,
    ) -> Result<()> {
        let shape = self.shape_of(layer)?;
        check_length(key.len(), cross_tokens * shape.key)?;
        check_length(value.len(), cross_tokens * shape.value)?;
        let per_head = check_scales(&scales, shape.kv_heads)?;
        let mut parts = Parts::default();
        let value = (shape.value > 0).then_some(value);
        let (key, value) = (parts.input(key), parts.optional_input(value));
        let key_scale = parts.optional_input(scales.map(|s| s.key));
        let value_scale = parts.optional_input(scales.map(|s| s.value));
        self.run_on_slices(parts, |parts, cache| {
            let args = WriteCrossArgs {
                sequence: sequence.raw(),
                key: parts.address::<c_void>(key),
                value: parts.optional_address::<c_void>(value),
                layer,
                dtype: T::DTYPE.into(),
                key_scale: parts.optional_address(key_scale),
                value_scale: parts.optional_address(value_scale),
                scale_per_head: per_head.into(),
                ..Default::default()
            };
            // SAFETY: the arrays have the sizes that the caller and the layout name.
            unsafe { sys::kvarena_step_write_cross(cache, &args) }
        })
    }

    /// Queues the write of the new tokens' keys of a sparse-attention index.
    ///
    /// # Safety
    /// As for [`write_raw`](Step::write_raw).
    pub unsafe fn write_index_raw(&mut self, args: &WriteIndexArgs) -> Result<()> {
        check(sys::kvarena_step_write_index(self.raw, args))
    }

    /// Queues the write of K and V of a sequence's encoder.
    ///
    /// # Safety
    /// As for [`write_raw`](Step::write_raw).
    pub unsafe fn write_cross_raw(&mut self, args: &WriteCrossArgs) -> Result<()> {
        check(sys::kvarena_step_write_cross(self.raw, args))
    }
}

impl Recording<'_> {
    /// Records the write of the keys of a sparse-attention index.
    ///
    /// # Safety
    /// As for [`write_raw`](Recording::write_raw).
    pub unsafe fn write_index_raw(&mut self, args: &WriteIndexArgs) -> Result<()> {
        check(sys::kvarena_step_write_index(self.raw_cache(), args))
    }
}
