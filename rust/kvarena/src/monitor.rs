//! Health of the process: checks, pressure, metrics, and an HTTP server if asked.

use crate::cache::Cache;
use crate::convert::{c_string, pointer_of, string_at, text_of};
use crate::device::Device;
use crate::log::run_for_library;
use crate::status::{check, failed, Result, Status};
use crate::sys;
use std::os::raw::{c_char, c_void};
use std::ptr;

options! {
    /// Options of a monitor. Times are nanoseconds. Zero means the default.
    MonitorOptions to kvarena_monitor_options {
        /// From one check to the next; 0: 60 s.
        period_ns: i64,
        /// From one look at the pressure to the next; 0: 1 s; -1: with checks.
        pressure_period_ns: i64,
        /// A longer check is stuck; 0: 30 s or the period.
        check_limit_ns: i64,
        /// A ticket open for longer is late; 0: 30 s.
        ticket_limit_ns: i64,
        /// A holder this long past its deadline is late.
        holder_grace_ns: i64,
        /// An engine without a step for longer is stuck; 0: 30 s.
        step_limit_ns: i64,
        /// Logged past this; 0: 512 MiB; -1: never.
        drift_warning_bytes: i64,
        /// A reason past this; 0: never.
        drift_limit_bytes: i64,
        /// Share of available blocks; 0: 0.20.
        blocks_elevated: f64,
        /// 0: 0.05.
        blocks_critical: f64,
        /// Share of free VRAM; 0: 0.05.
        vram_elevated: f64,
        /// 0: 0.01.
        vram_critical: f64,
        /// 0: 0.001.
        vram_exhausted: f64,
        /// 0: 0.02.
        hysteresis: f64,
        /// Free VRAM does not count.
        ignore_vram: bool,
        /// Checks are made only by [`Monitor::check`].
        no_thread: bool,
        /// Start the HTTP server.
        serve_http: bool,
        /// 0: any free port.
        http_port: i32,
        /// 1 .. 1024; 0: 32.
        http_max_connections: i32,
        /// 10 .. 600000; 0: 5000.
        http_request_limit_ms: i32,
        /// 256 .. 1 MiB; 0: 8 KiB.
        http_max_request_bytes: u64,
    }
}

/// How few blocks or bytes are left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Pressure {
    /// Enough.
    Normal,
    /// Less than the first limit.
    Elevated,
    /// Less than the second.
    Critical,
    /// None.
    Exhausted,
}

impl Pressure {
    fn from_c(number: i32) -> Self {
        match number {
            i32::MIN..=0 => Self::Normal,
            1 => Self::Elevated,
            2 => Self::Critical,
            _ => Self::Exhausted,
        }
    }
}

/// Receives the name and the sentence of a reason why the process is unhealthy, when it appears.
pub type UnhealthyFunction = Box<dyn Fn(&str, &str) + Send + Sync>;
/// Receives a change of the pressure on a watched cache: its name, from, to, and a sentence.
pub type PressureFunction = Box<dyn Fn(&str, Pressure, Pressure, &str) + Send + Sync>;

/// What a monitor is given beside its options. The functions must not call the monitor.
#[derive(Default)]
pub struct MonitorParts<'a> {
    /// Without it 127.0.0.1; another than loopback needs a token.
    pub http_address: Option<&'a str>,
    /// 16 .. 256 letters, digits and `-._~+/=`.
    pub http_token: Option<&'a str>,
    /// Called on a thread of the monitor, or in [`Monitor::check`].
    pub on_unhealthy: Option<UnhealthyFunction>,
    /// Called on a thread of the monitor, or in [`Monitor::check`].
    pub on_pressure: Option<PressureFunction>,
}

struct Functions {
    on_unhealthy: Option<UnhealthyFunction>,
    on_pressure: Option<PressureFunction>,
}

unsafe extern "C" fn pass_unhealthy(user: *mut c_void, code: *const c_char, text: *const c_char) {
    run_for_library(|| {
        if let Some(function) = &(*user.cast::<Functions>()).on_unhealthy {
            function(&string_at(code), &string_at(text));
        }
    });
}

unsafe extern "C" fn pass_pressure(
    user: *mut c_void,
    name: *const c_char,
    from: i32,
    to: i32,
    text: *const c_char,
) {
    run_for_library(|| {
        if let Some(function) = &(*user.cast::<Functions>()).on_pressure {
            let (from, to) = (Pressure::from_c(from), Pressure::from_c(to));
            function(&string_at(name), from, to, &string_at(text));
        }
    });
}

/// Watches devices and caches. Any thread may use it. Dropping it stops server and monitor and waits
/// for a running check, so that it must not happen in one of its functions.
pub struct Monitor {
    raw: *mut sys::kvarena_monitor,
    functions: *mut Functions,
}

// SAFETY: the calls are for any thread, and the functions may be called from any.
unsafe impl Send for Monitor {}
// SAFETY: as above.
unsafe impl Sync for Monitor {}

// SAFETY of the calls below: handle, options and results are valid, and text lives until the return.
impl Monitor {
    /// Starts a monitor, and its HTTP server if asked.
    pub fn start(options: &MonitorOptions, parts: MonitorParts<'_>) -> Result<Self> {
        let address = parts.http_address.map(c_string);
        let token = parts.http_token.map(c_string);
        let mut raw_options = sys::kvarena_monitor_options {
            http_address: pointer_of(&address),
            http_token: pointer_of(&token),
            ..options.raw()
        };
        if parts.on_unhealthy.is_some() {
            raw_options.on_unhealthy = Some(pass_unhealthy);
        }
        if parts.on_pressure.is_some() {
            raw_options.on_pressure = Some(pass_pressure);
        }
        let functions = Box::into_raw(Box::new(Functions {
            on_unhealthy: parts.on_unhealthy,
            on_pressure: parts.on_pressure,
        }));
        raw_options.user = functions.cast();
        let mut raw = ptr::null_mut();
        let started = check(unsafe { sys::kvarena_monitor_start(&raw_options, &mut raw) });
        if started.is_err() {
            // SAFETY: no monitor has them.
            drop(unsafe { Box::from_raw(functions) });
        }
        started.map(|()| Self { raw, functions })
    }

    /// Watches a device, which the monitor keeps.
    pub fn watch_device(&self, device: &Device) -> Result<()> {
        check(unsafe { sys::kvarena_monitor_watch_device(self.raw, device.raw()) })
    }

    /// Stops watching a device.
    pub fn unwatch_device(&self, device: &Device) -> Result<()> {
        check(unsafe { sys::kvarena_monitor_unwatch_device(self.raw, device.raw()) })
    }

    /// Watches a cache, and its device. The end of the cache ends the watch.
    pub fn watch(&self, cache: &Cache, name: &str) -> Result<()> {
        let name = c_string(name);
        check(unsafe { sys::kvarena_monitor_watch(self.raw, cache.raw, name.as_ptr()) })
    }

    /// Stops watching a cache.
    pub fn unwatch(&self, name: &str) -> Result<()> {
        let name = c_string(name);
        check(unsafe { sys::kvarena_monitor_unwatch(self.raw, name.as_ptr()) })
    }

    /// Takes the engine's own figures: requests that wait now, preemptions since the last call.
    pub fn report_engine(
        &self,
        name: &str,
        waiting_requests: i64,
        new_preemptions: i64,
    ) -> Result<()> {
        let name = c_string(name);
        check(unsafe {
            let name = name.as_ptr();
            sys::kvarena_monitor_report_engine(self.raw, name, waiting_requests, new_preemptions)
        })
    }

    /// Runs a check now and says whether the process is healthy.
    pub fn check(&self) -> Result<bool> {
        let mut healthy = false;
        check(unsafe { sys::kvarena_monitor_check(self.raw, &mut healthy) })?;
        Ok(healthy)
    }

    /// Says whether the process is healthy, without a check.
    pub fn is_healthy(&self) -> Result<bool> {
        let mut healthy = false;
        check(unsafe { sys::kvarena_monitor_is_healthy(self.raw, &mut healthy) })?;
        Ok(healthy)
    }

    /// Clears the violations. One that still holds comes back with the next check.
    pub fn acknowledge(&self) -> Result<()> {
        check(unsafe { sys::kvarena_monitor_acknowledge(self.raw) })
    }

    /// Returns the port of the HTTP server.
    pub fn port(&self) -> Result<u16> {
        let mut port = 0;
        check(unsafe { sys::kvarena_monitor_port(self.raw, &mut port) })?;
        Ok(u16::try_from(port).unwrap_or(0))
    }

    /// Returns what `GET /health` answers.
    pub fn health_json(&self) -> Result<String> {
        text_of(|out, size, length| unsafe {
            sys::kvarena_monitor_health_json(self.raw, out, size, length)
        })
        .map_err(failed)
    }

    /// Returns what `GET /stats` answers.
    pub fn stats_json(&self) -> Result<String> {
        text_of(|out, size, length| unsafe {
            sys::kvarena_monitor_stats_json(self.raw, out, size, length)
        })
        .map_err(failed)
    }

    /// Returns what `GET /metrics` answers.
    pub fn metrics(&self) -> Result<String> {
        text_of(|out, size, length| unsafe {
            sys::kvarena_monitor_metrics(self.raw, out, size, length)
        })
        .map_err(failed)
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        // SAFETY: this is the last use of the handle; after it no thread is in the functions.
        unsafe {
            if Status(sys::kvarena_monitor_release(self.raw)).is_ok() {
                drop(Box::from_raw(self.functions));
            }
        }
    }
}
