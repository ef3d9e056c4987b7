//! Memory and streams of a device, for engines that keep a pool of their own.

use crate::convert::{c_string, pointer_of};
use crate::device::{Device, DeviceHandle};
use crate::status::{check, Result, Status};
use crate::sys;
use crate::values::{MemoryKind, Purpose};
use std::cell::Cell;
use std::marker::PhantomData;
use std::os::raw::c_void;
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};

/// A request for memory.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AllocationRequest {
    /// 1 .. 2^48.
    pub bytes: u64,
    /// A power of two, at most 4096; 0: 256.
    pub alignment_bytes: u64,
    /// What it is for.
    pub purpose: Purpose,
    /// Which kind of memory it must be.
    pub kind: MemoryKind,
    /// For reports.
    pub description: Option<String>,
}

impl AllocationRequest {
    /// Calls with the struct of the header.
    fn with_raw<T>(&self, call: impl FnOnce(&sys::kvarena_allocation) -> T) -> T {
        let description = self.description.as_deref().map(c_string);
        call(&sys::kvarena_allocation {
            bytes: self.bytes,
            alignment_bytes: self.alignment_bytes,
            purpose: self.purpose.into(),
            kind: self.kind.into(),
            description: pointer_of(&description),
            ..Default::default()
        })
    }
}

/// Memory of a device. Dropping it gives it back. Its bytes are at first what they were.
pub struct Memory {
    device: Arc<DeviceHandle>,
    address: *mut c_void,
    bytes: usize,
}

// SAFETY: the address means the same on each thread, and what changes bytes needs `&mut` or is unsafe.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Returns the address on the device, for calls with raw pointers. Work that uses it must have
    /// completed when the memory is dropped.
    pub fn as_ptr(&self) -> *mut c_void {
        self.address
    }

    /// Returns the size.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    fn check_range(&self, offset: usize, length: usize) -> Result<()> {
        match offset.checked_add(length) {
            Some(end) if end <= self.bytes => Ok(()),
            _ => Err(Status::wrong_length(length, self.bytes.saturating_sub(offset)).into()),
        }
    }

    /// Copies bytes of the host to `offset`. Returns when they are there.
    pub fn write(&mut self, offset: usize, bytes: &[u8]) -> Result<()> {
        self.check_range(offset, bytes.len())?;
        // SAFETY: the range lies in the memory, and the copy has ended at the return.
        unsafe {
            let target = self.address.cast::<u8>().add(offset).cast();
            self.device.copies.copy(self.device.raw, target, bytes.as_ptr().cast(), bytes.len())
        }
    }

    /// Copies bytes from `offset` to the host. Returns when they are there.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<()> {
        self.check_range(offset, bytes.len())?;
        // SAFETY: the range lies in the memory, and the copy has ended at the return.
        unsafe {
            let source = self.address.cast::<u8>().add(offset).cast();
            self.device.copies.copy(self.device.raw, bytes.as_mut_ptr().cast(), source, bytes.len())
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the memory is this one's, and who used it by pointer has ended its work.
        unsafe { sys::kvarena_memory_free(self.device.raw, self.address) };
    }
}

/// The stream of the safe copies of a device, made with the first.
#[derive(Default)]
pub(crate) struct SafeCopies {
    stream: Mutex<Option<RawStream>>,
}

struct RawStream(*mut c_void);

// SAFETY: the stream is used under the lock alone.
unsafe impl Send for RawStream {}

impl SafeCopies {
    /// # Safety
    /// The device is open, and both ranges are valid.
    unsafe fn copy(
        &self,
        device: *mut sys::kvarena_device,
        target: *mut c_void,
        source: *const c_void,
        bytes: usize,
    ) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        let mut stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        if stream.is_none() {
            let mut made = ptr::null_mut();
            check(sys::kvarena_stream_create(device, &mut made))?;
            *stream = Some(RawStream(made));
        }
        let stream = stream.as_ref().map_or(ptr::null_mut(), |s| s.0);
        check(sys::kvarena_memory_copy(device, target, source, bytes as u64, stream))?;
        check(sys::kvarena_stream_synchronize(device, stream))
    }

    pub(crate) fn close(&mut self, device: *mut sys::kvarena_device) {
        let stream = self.stream.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(RawStream(stream)) = stream.take() {
            // SAFETY: the device is open, and nobody uses the stream.
            unsafe { sys::kvarena_stream_destroy(device, stream) };
        }
    }
}

pub(crate) struct StreamHandle {
    device: Arc<DeviceHandle>,
    raw: *mut c_void,
    is_default: bool,
}

// SAFETY: a stream's calls are locked; `Stream` sees to it that one thread at a time names it.
unsafe impl Send for StreamHandle {}
// SAFETY: as above.
unsafe impl Sync for StreamHandle {}

impl Drop for StreamHandle {
    fn drop(&mut self) {
        if !self.is_default {
            // SAFETY: nobody names the stream any more. One that CUDA made is only forgotten.
            unsafe { sys::kvarena_stream_destroy(self.device.raw, self.raw) };
        }
    }
}

/// A stream of a device: work that is queued on it runs in order. It ends when it is dropped and no
/// cache works on it any more.
pub struct Stream {
    pub(crate) handle: Arc<StreamHandle>,
    one_thread: PhantomData<Cell<()>>,
}

impl Stream {
    fn new(device: &Device, raw: *mut c_void, is_default: bool) -> Self {
        let handle = StreamHandle { device: device.handle.clone(), raw, is_default };
        Self { handle: Arc::new(handle), one_thread: PhantomData }
    }

    /// Takes a `cudaStream_t` of the device's GPU that the caller made.
    ///
    /// # Safety
    /// The stream exists until this object is dropped and no cache works on it any more, and there is
    /// one such object for it at a time.
    pub unsafe fn from_cuda(device: &Device, stream: *mut c_void) -> Self {
        Self::new(device, stream, false)
    }

    /// CUDA's legacy default stream. Fails on the host device.
    pub fn legacy(device: &Device) -> Result<Self> {
        Self::default_stream(device, sys::KVARENA_STREAM_LEGACY)
    }

    /// CUDA's default stream of whichever thread calls. Fails on the host device.
    pub fn per_thread(device: &Device) -> Result<Self> {
        Self::default_stream(device, sys::KVARENA_STREAM_PER_THREAD)
    }

    fn default_stream(device: &Device, number: usize) -> Result<Self> {
        if !device.info()?.is_cuda {
            let code = sys::KVARENA_UNSUPPORTED;
            return Err(Status::refusal(code, sys::KVARENA_RESOURCE_DEVICE).into());
        }
        Ok(Self::new(device, number as *mut c_void, true))
    }

    /// The stream for calls of `device`, or for none NULL. A stream of another device is refused: it
    /// is a number there that means something else here.
    pub(crate) fn raw_of(stream: Option<&Self>, device: &Device) -> Result<*mut c_void> {
        match stream {
            None => Ok(ptr::null_mut()),
            Some(stream) if Arc::ptr_eq(&stream.handle.device, &device.handle) => {
                Ok(stream.handle.raw)
            }
            Some(_) => {
                Err(Status::refusal(sys::KVARENA_NOT_FOUND, sys::KVARENA_RESOURCE_STREAM).into())
            }
        }
    }

    /// Returns the stream for calls with raw pointers: on CUDA a `cudaStream_t`.
    pub fn as_ptr(&self) -> *mut c_void {
        self.handle.raw
    }

    /// Waits until all work of the stream has completed and returns its first failure, once.
    pub fn synchronize(&self) -> Result<()> {
        let handle = &self.handle;
        // SAFETY: the device is open and the stream exists.
        check(unsafe { sys::kvarena_stream_synchronize(handle.device.raw, handle.raw) })
    }
}

impl Device {
    /// Allocates uninitialised memory and records it.
    pub fn allocate(&self, request: &AllocationRequest) -> Result<Memory> {
        let mut address = ptr::null_mut();
        request.with_raw(|raw| {
            // SAFETY: handle, request and result are valid.
            check(unsafe { sys::kvarena_memory_allocate(self.raw(), raw, &mut address) })
        })?;
        let bytes = request.bytes as usize;
        Ok(Memory { device: self.handle.clone(), address, bytes })
    }

    /// Records memory that the engine allocated itself, so that it is counted and checked. Without
    /// `defer` the driver is asked now, and memory that the device's policy forbids is refused.
    ///
    /// # Safety
    /// The memory exists until it is unregistered.
    pub unsafe fn register(
        &self,
        memory: *mut c_void,
        request: &AllocationRequest,
        defer: bool,
    ) -> Result<()> {
        request.with_raw(|raw| {
            check(sys::kvarena_memory_register(self.raw(), memory, raw, defer.into()))
        })
    }

    /// Removes the record of registered memory.
    ///
    /// # Safety
    /// The memory still exists, or is gone and not used.
    pub unsafe fn unregister(&self, memory: *mut c_void) -> Result<()> {
        check(sys::kvarena_memory_unregister(self.raw(), memory))
    }

    /// Creates a stream.
    pub fn create_stream(&self) -> Result<Stream> {
        let mut raw = ptr::null_mut();
        // SAFETY: handle and result are valid.
        check(unsafe { sys::kvarena_stream_create(self.raw(), &mut raw) })?;
        Ok(Stream::new(self, raw, false))
    }

    /// Queues a copy on a stream.
    ///
    /// # Safety
    /// Both are host or device memory of `bytes` bytes, do not overlap, and stay valid until the copy
    /// has completed.
    pub unsafe fn copy(
        &self,
        target: *mut c_void,
        source: *const c_void,
        bytes: u64,
        stream: &Stream,
    ) -> Result<()> {
        let stream = Stream::raw_of(Some(stream), self)?;
        check(sys::kvarena_memory_copy(self.raw(), target, source, bytes, stream))
    }

    /// Queues setting bytes to a value.
    ///
    /// # Safety
    /// `target` is host or device memory of `bytes` bytes that stays valid until it is set.
    pub unsafe fn fill(
        &self,
        target: *mut c_void,
        value: u8,
        bytes: u64,
        stream: &Stream,
    ) -> Result<()> {
        let stream = Stream::raw_of(Some(stream), self)?;
        check(sys::kvarena_memory_fill(self.raw(), target, value, bytes, stream))
    }
}
