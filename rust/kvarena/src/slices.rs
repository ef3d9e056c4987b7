//! Write and attend with slices of host memory. They return after the work. On the host device the
//! library works on the slices themselves; on a GPU they are copied there and back.

use crate::cache::Cache;
use crate::device::Device;
use crate::memory::{AllocationRequest, Memory};
use crate::status::{check, Result, Status};
use crate::step::{AttendArgs, Step, WriteArgs};
use crate::sys;
use crate::values::{Dtype, Purpose};
use std::mem::{size_of, size_of_val};
use std::os::raw::c_void;
use std::ptr;

/// The bits of an IEEE half.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct F16(pub u16);

/// The bits of a bfloat16.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct Bf16(pub u16);

mod sealed {
    pub trait Sealed {}
}

/// An element of key, value, q and out: `f32`, [`F16`] or [`Bf16`].
pub trait Element: Copy + sealed::Sealed {
    /// Its type for the library.
    const DTYPE: Dtype;
}

macro_rules! elements {
    ($($type:ty = $dtype:ident)*) => {$(
        impl sealed::Sealed for $type {}
        impl Element for $type {
            const DTYPE: Dtype = Dtype::$dtype;
        }
    )*};
}
elements! { f32 = F32 F16 = F16 Bf16 = Bf16 }

/// The scales of fp8 K and V on CUDA: one each, or one for each KV head.
#[derive(Clone, Copy, Debug)]
pub struct Scales<'a> {
    /// Of K.
    pub key: &'a [f32],
    /// Of V.
    pub value: &'a [f32],
}

/// What attention may be given beside q and out.
#[derive(Debug, Default)]
pub struct AttendOptions<'a> {
    /// See only the last `window_tokens` of the cache's options.
    pub windowed: bool,
    /// Of the logits; 0: 1 / sqrt(head_dim_k).
    pub scale: f32,
    /// Of the logits; 0: none.
    pub soft_cap: f32,
    /// `[num_tokens, num_q_heads]` gets the log-sum-exp.
    pub lse: Option<&'a mut [f32]>,
    /// `[num_q_heads]` logits of the attention sinks.
    pub sinks: Option<&'a [f32]>,
    /// `[num_tokens]` draft trees: bit j of a token says whether it sees new token j of its row.
    pub tree_mask: Option<&'a [u64]>,
    /// Of fp8 K and V: the same as for the write.
    pub scales: Option<Scales<'a>>,
}

/// Device memory for slices, which grows.
#[derive(Default)]
pub(crate) struct Staging {
    memory: Option<Memory>,
}

const ALIGNMENT: usize = 256;

impl Staging {
    /// Returns the address of at least `bytes` bytes of the device.
    fn room_for(&mut self, device: &Device, bytes: usize) -> Result<*mut u8> {
        if self.memory.as_ref().map_or(0, Memory::bytes) < bytes {
            self.memory = None; // its work has completed with the call that queued it
            self.memory = Some(device.allocate(&AllocationRequest {
                bytes: bytes.next_power_of_two() as u64,
                purpose: Purpose::IntermediateBuffers,
                description: Some("slices of the host".to_string()),
                ..Default::default()
            })?);
        }
        Ok(self.memory.as_ref().map_or(ptr::null_mut(), |m| m.as_ptr().cast()))
    }
}

/// One array of a call: where it lies on the host, and where the library shall find it.
struct Part {
    host: *mut u8,
    bytes: usize,
    is_result: bool,
    offset: usize,
}

/// The arrays of a call, and where they lie on the device.
#[derive(Default)]
pub(crate) struct Parts {
    list: Vec<Part>,
    bytes: usize,
    base: Option<*mut u8>,
}

impl Parts {
    fn add(&mut self, host: *mut u8, bytes: usize, is_result: bool) -> usize {
        let offset = self.bytes;
        self.bytes += (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
        self.list.push(Part { host, bytes, is_result, offset });
        self.list.len() - 1
    }

    pub(crate) fn input<T>(&mut self, slice: &[T]) -> usize {
        self.add(slice.as_ptr() as *mut u8, size_of_val(slice), false)
    }

    pub(crate) fn optional_input<T>(&mut self, slice: Option<&[T]>) -> Option<usize> {
        slice.map(|s| self.input(s))
    }

    fn result<T>(&mut self, slice: &mut [T]) -> usize {
        self.add(slice.as_mut_ptr().cast(), size_of_val(slice), true)
    }

    /// Where the library finds an array.
    pub(crate) fn address<T>(&self, index: usize) -> *mut T {
        let part = &self.list[index];
        match self.base {
            // SAFETY: `base` has room for all parts.
            Some(base) => unsafe { base.add(part.offset) }.cast(),
            None => part.host.cast(),
        }
    }

    pub(crate) fn optional_address<T>(&self, index: Option<usize>) -> *mut T {
        index.map_or(ptr::null_mut(), |i| self.address(i))
    }
}

pub(crate) fn check_length(given: usize, needed: usize) -> Result<()> {
    if given == needed {
        return Ok(());
    }
    Err(Status::wrong_length(given, needed).into())
}

/// Whether there is one scale for each head.
pub(crate) fn check_scales(scales: &Option<Scales<'_>>, kv_heads: usize) -> Result<bool> {
    match scales {
        Some(scales) if scales.key.len() != 1 || scales.value.len() != 1 => {
            check_length(scales.key.len(), kv_heads)?;
            check_length(scales.value.len(), kv_heads)?;
            Ok(true)
        }
        _ => Ok(false),
    }
}

impl Cache {
    /// New tokens of the step.
    pub(crate) fn step_tokens(&self) -> Result<usize> {
        match self.step.as_ref().and_then(|s| s.num_tokens()) {
            Some(tokens) => Ok(tokens),
            None => Err(Status::no_step().into()),
        }
    }

    /// Runs `call` with the arrays where the device finds them, and waits for the work.
    pub(crate) fn run_on_slices(
        &mut self,
        mut parts: Parts,
        call: impl FnOnce(&Parts, *mut sys::kvarena_cache) -> sys::kvarena_status,
    ) -> Result<()> {
        if self.shape.is_cuda {
            parts.base = Some(self.staging.room_for(&self.device, parts.bytes.max(1))?);
        }
        let queued = self.queue_on_slices(&parts, call);
        // SAFETY: the handle is valid. Whatever was queued has ended after this.
        let waited = check(unsafe { sys::kvarena_cache_synchronize(self.raw) });
        queued.and(waited)
    }

    fn queue_on_slices(
        &self,
        parts: &Parts,
        call: impl FnOnce(&Parts, *mut sys::kvarena_cache) -> sys::kvarena_status,
    ) -> Result<()> {
        if parts.base.is_none() {
            return self.check(call(parts, self.raw));
        }
        let stream = self.stream_ptr()?;
        let copy = |target: *mut u8, source: *mut u8, bytes: usize| {
            if bytes == 0 {
                return Ok(());
            }
            // SAFETY: both have room for the bytes until `run_on_slices` has waited.
            check(unsafe {
                let (target, source) = (target.cast::<c_void>(), source.cast::<c_void>());
                sys::kvarena_memory_copy(self.device.raw(), target, source, bytes as u64, stream)
            })
        };
        for (index, part) in parts.list.iter().enumerate().filter(|(_, p)| !p.is_result) {
            copy(parts.address(index), part.host, part.bytes)?;
        }
        self.check(call(parts, self.raw))?;
        for (index, part) in parts.list.iter().enumerate().filter(|(_, p)| p.is_result) {
            copy(part.host, parts.address(index), part.bytes)?;
        }
        Ok(())
    }
}

impl Step<'_> {
    /// Writes K and V of the new tokens of one layer: `[num_tokens, num_kv_heads, head_dim]` each. Of
    /// a layer whose V lies in K, `value` is empty.
    pub fn write<T: Element>(&mut self, layer: i32, key: &[T], value: &[T]) -> Result<()> {
        self.write_scaled(layer, key, value, None)
    }

    /// Does what `write` does, into a pool of fp8.
    pub fn write_scaled<T: Element>(
        &mut self,
        layer: i32,
        key: &[T],
        value: &[T],
        scales: Option<Scales<'_>>,
    ) -> Result<()> {
        let (tokens, shape) = (self.step_tokens()?, self.shape_of(layer)?);
        check_length(key.len(), tokens * shape.key)?;
        check_length(value.len(), tokens * shape.value)?;
        let per_head = check_scales(&scales, shape.kv_heads)?;
        let mut parts = Parts::default();
        let value = (shape.value > 0).then_some(value);
        let (key, value) = (parts.input(key), parts.optional_input(value));
        let key_scale = parts.optional_input(scales.map(|s| s.key));
        let value_scale = parts.optional_input(scales.map(|s| s.value));
        self.run_on_slices(parts, |parts, cache| {
            let args = WriteArgs {
                key: parts.address::<c_void>(key),
                value: parts.optional_address::<c_void>(value),
                layer,
                dtype: T::DTYPE.into(),
                key_scale: parts.optional_address(key_scale),
                value_scale: parts.optional_address(value_scale),
                scale_per_head: per_head.into(),
                ..Default::default()
            };
            // SAFETY: the arrays have the sizes that the step and the layout need.
            unsafe { sys::kvarena_step_write(cache, &args) }
        })
    }

    /// Computes attention of the new tokens of one layer over all tokens so far: `q` is `[num_tokens,
    /// num_q_heads, head_dim_k]` and `out` `[num_tokens, num_q_heads, head_dim_v]`.
    pub fn attend<Q: Element, O: Element>(
        &mut self,
        layer: i32,
        q: &[Q],
        out: &mut [O],
    ) -> Result<()> {
        self.attend_with(layer, q, out, AttendOptions::default())
    }

    /// Does what `attend` does, with options.
    pub fn attend_with<Q: Element, O: Element>(
        &mut self,
        layer: i32,
        q: &[Q],
        out: &mut [O],
        options: AttendOptions<'_>,
    ) -> Result<()> {
        let (tokens, shape) = (self.step_tokens()?, self.shape_of(layer)?);
        check_length(q.len(), tokens * shape.q)?;
        check_length(out.len(), tokens * shape.out)?;
        let per_head = check_scales(&options.scales, shape.kv_heads)?;
        if let Some(lse) = &options.lse {
            check_length(lse.len(), tokens * shape.q_heads)?;
        }
        if let Some(sinks) = options.sinks {
            check_length(sinks.len(), shape.q_heads)?;
        }
        if let Some(mask) = options.tree_mask {
            check_length(mask.len(), tokens)?;
        }
        let mut parts = Parts::default();
        let (q, out) = (parts.input(q), parts.result(out));
        let lse = options.lse.map(|lse| parts.result(lse));
        let sinks = parts.optional_input(options.sinks);
        let tree_mask = parts.optional_input(options.tree_mask);
        let key_scale = parts.optional_input(options.scales.map(|s| s.key));
        let value_scale = parts.optional_input(options.scales.map(|s| s.value));
        let (windowed, scale, soft_cap) = (options.windowed, options.scale, options.soft_cap);
        self.run_on_slices(parts, |parts, cache| {
            let args = AttendArgs {
                q: parts.address::<c_void>(q),
                out: parts.address(out),
                lse: parts.optional_address(lse),
                sinks: parts.optional_address(sinks),
                tree_mask: parts.optional_address(tree_mask),
                layer,
                q_dtype: Q::DTYPE.into(),
                out_dtype: O::DTYPE.into(),
                windowed: windowed.into(),
                scale,
                soft_cap,
                key_scale: parts.optional_address(key_scale),
                value_scale: parts.optional_address(value_scale),
                scale_per_head: per_head.into(),
                ..Default::default()
            };
            // SAFETY: the arrays have the sizes that the step and the layout need.
            unsafe { sys::kvarena_step_attend(cache, &args) }
        })
    }
}

const _: () = assert!(size_of::<F16>() == 2 && size_of::<Bf16>() == 2);
