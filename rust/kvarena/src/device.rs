//! Devices: memory, streams and accounts of a GPU, or of the process.

use crate::convert::{c_string, text_and_status, text_of};
use crate::memory::SafeCopies;
use crate::status::{check, failed, Error, Result};
use crate::sys;
use crate::values::{Place, Purpose};
use std::os::raw::c_void;
use std::ptr;
use std::sync::Arc;

options! {
    /// Options of a host device: memory of the process, which serves machines without a GPU. Zero
    /// means the default.
    HostOptions to kvarena_host_options {
        /// At most 2^48; 0: what the machine has available.
        capacity_bytes: u64,
        /// 1 .. 4096; 0: 64.
        max_streams: u32,
        /// 1 .. 2^20 operations queued on a stream; 0: 4096.
        max_queued: u32,
        /// Work runs in the call that queues it, without threads.
        inline_calls: bool,
    }
}

options! {
    /// Options of a CUDA device. Zero means the default.
    CudaOptions to kvarena_cuda_options {
        /// The GPU, as `CUDA_VISIBLE_DEVICES` numbers them.
        ordinal: i32,
        /// Host memory is accepted for KV and weights; logged.
        allow_host: bool,
        /// 1 .. 4096; 0: 64.
        max_streams: u32,
        /// 1 .. 2^20 queued on a stream; 0: 1024.
        max_host_functions: u32,
        /// 4 KiB .. 64 MiB of pinned memory a stream; 0: 256 KiB.
        bounce_bytes: u64,
    }
}

answer! {
    /// Facts about a device.
    DeviceInfo from kvarena_device_info {
        /// All memory; the capacity of a host device.
        total_bytes: u64,
        /// What the driver can give now, next to other processes.
        free_bytes: u64,
        /// Recorded by this device, of kind device.
        tracked_bytes: u64,
        /// Recorded by this device, of kind staging.
        staging_bytes: u64,
        /// Used when the device was opened: contexts, other processes.
        overhead_bytes: u64,
        /// As in [`CudaOptions`]; 0 on the host.
        bounce_bytes: u64,
        /// A GPU; else the host.
        is_cuda: bool,
        /// Of the GPU; -1 on the host.
        ordinal: i32,
        /// 10 * major + minor; 0 on the host.
        compute_capability: i32,
        /// Multiprocessors; 0 on the host.
        num_sms: i32,
        /// The sticky CUDA error by which the device was lost, or 0.
        lost_to: i32,
        /// Host memory is accepted for KV and weights.
        allows_host: bool,
    }
}

options! {
    /// The facts of a device that decide a cache's sizes.
    Target to kvarena_target {
        /// CUDA: as in [`CudaOptions`]; 0: 256 KiB.
        bounce_bytes: i64,
        /// A GPU.
        is_cuda: bool,
        /// CUDA: 1 .. 4096.
        num_sms: i32,
        /// Host: the default of a cache's `num_threads`; 0: one a core of this machine.
        num_threads: i32,
    }
}

/// What owns a device's handle.
pub(crate) struct DeviceHandle {
    pub(crate) raw: *mut sys::kvarena_device,
    pub(crate) copies: SafeCopies,
}

// SAFETY: any thread may call a device beside others. A stream is used by one thread at a time: the
// stream of `copies` lies behind a lock.
unsafe impl Send for DeviceHandle {}
// SAFETY: as above.
unsafe impl Sync for DeviceHandle {}

impl Drop for DeviceHandle {
    fn drop(&mut self) {
        self.copies.close(self.raw);
        // SAFETY: nobody else has the handle. Caches and monitors keep the device themselves.
        unsafe { sys::kvarena_device_release(self.raw) };
    }
}

/// A device. Any thread may use it. Clones are the same device, which ends when all of them, its
/// memory, streams, caches, kernels and monitors are dropped.
#[derive(Clone)]
pub struct Device {
    pub(crate) handle: Arc<DeviceHandle>,
}

/// What [`Device::verify`] found.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// `ResidencyViolated` with the first address that is wrong.
    pub outcome: Result<()>,
    /// The verdict as JSON.
    pub json: String,
}

impl Device {
    /// Opens a host device.
    pub fn open_host(options: &HostOptions) -> Result<Self> {
        let mut raw = ptr::null_mut();
        // SAFETY: options and result are valid.
        check(unsafe { sys::kvarena_device_open_host(&options.raw(), &mut raw) })?;
        Ok(Self::from_handle(raw))
    }

    /// Opens a GPU. The host never takes the place of a GPU by itself.
    pub fn open_cuda(options: &CudaOptions) -> Result<Self> {
        let mut raw = ptr::null_mut();
        // SAFETY: options and result are valid.
        check(unsafe { sys::kvarena_device_open_cuda(&options.raw(), &mut raw) })?;
        Ok(Self::from_handle(raw))
    }

    fn from_handle(raw: *mut sys::kvarena_device) -> Self {
        Self { handle: Arc::new(DeviceHandle { raw, copies: SafeCopies::default() }) }
    }

    pub(crate) fn raw(&self) -> *mut sys::kvarena_device {
        self.handle.raw
    }

    /// Returns the handle, for calls of [`crate::sys`]. It is valid while this device lives.
    pub fn as_raw(&self) -> *mut sys::kvarena_device {
        self.handle.raw
    }

    /// Reads the facts.
    pub fn info(&self) -> Result<DeviceInfo> {
        let mut info = sys::kvarena_device_info::default();
        // SAFETY: handle and result are valid.
        check(unsafe { sys::kvarena_device_ask(self.raw(), &mut info) })?;
        Ok((&info).into())
    }

    /// Returns the name for people: "host", "cuda:0 NVIDIA H200".
    pub fn name(&self) -> Result<String> {
        // SAFETY: handle and buffer are valid, here and below.
        text_of(|out, size, length| unsafe {
            sys::kvarena_device_name(self.raw(), out, size, length)
        })
        .map_err(failed)
    }

    /// Returns JSON: name, memory, usage by purpose, reported totals, the drift between driver and
    /// accounts, and all allocations by address.
    pub fn json(&self) -> Result<String> {
        // SAFETY: see `name`.
        text_of(|out, size, length| unsafe {
            sys::kvarena_device_json(self.raw(), out, size, length)
        })
        .map_err(failed)
    }

    /// Returns a table for people: usage by purpose, and the largest allocations.
    pub fn report(&self) -> Result<String> {
        // SAFETY: see `name`.
        text_of(|out, size, length| unsafe {
            sys::kvarena_device_report(self.raw(), out, size, length)
        })
        .map_err(failed)
    }

    /// Describes an error, with the memory breakdown or CUDA's own text where the device knows more.
    pub fn describe(&self, error: &Error) -> String {
        let status = error.status().as_raw();
        // SAFETY: see `name`.
        text_of(|out, size, length| unsafe {
            sys::kvarena_device_describe(self.raw(), status, out, size, length)
        })
        .unwrap_or_else(|_| error.to_string())
    }

    /// Returns the facts that decide a cache's sizes.
    pub fn target(&self) -> Result<Target> {
        let mut target = sys::kvarena_target::default();
        // SAFETY: handle and result are valid.
        check(unsafe { sys::kvarena_device_target(self.raw(), &mut target) })?;
        Ok((&target).into())
    }

    /// Sets how many bytes the allocator `name` holds now for `purpose`, in place of its earlier
    /// report: for an allocator that cannot name addresses.
    pub fn report_usage(&self, name: &str, purpose: Purpose, bytes: u64) -> Result<()> {
        let name = c_string(name);
        // SAFETY: the handle is valid, and the name lives until the return.
        check(unsafe {
            sys::kvarena_memory_report(self.raw(), name.as_ptr(), purpose.into(), bytes)
        })
    }

    /// Checks that every recorded allocation is where it must be.
    pub fn verify(&self) -> Verdict {
        // SAFETY: see `name`.
        let (json, status) = text_and_status(|out, size, length| unsafe {
            sys::kvarena_memory_verify(self.raw(), out, size, length)
        });
        Verdict { outcome: check(status), json }
    }

    /// Asks the driver what the `bytes` bytes from `memory` on are, and which GPU owns them.
    ///
    /// # Safety
    /// The bytes are memory of this process or of a GPU. They are not read.
    pub unsafe fn place_of(
        &self,
        memory: *const c_void,
        bytes: u64,
    ) -> Result<(Place, Option<i32>)> {
        let (mut place, mut ordinal) = (0, 0);
        let status = sys::kvarena_memory_place(self.raw(), memory, bytes, &mut place, &mut ordinal);
        check(status)?;
        Ok((place.into(), (ordinal >= 0).then_some(ordinal)))
    }
}

/// Returns JSON of the machine's GPUs and, when there is none, why. `with_memory` reads their free
/// memory, which creates a CUDA context on each.
pub fn devices_json(with_memory: bool) -> Result<String> {
    // SAFETY: the buffer is valid.
    text_of(|out, size, length| unsafe {
        sys::kvarena_devices_json(with_memory.into(), out, size, length)
    })
    .map_err(failed)
}
