//! On a GPU: slices, streams, recorded steps. Without one these tests skip.

mod common;

use common::{gpu, host};
use kvarena::{
    AllocationRequest, Attached, AttendArgs, Cache, CacheOptions, Demand, Device, Dtype, Memory,
    RecordedStep, Sequence, SequenceOptions, Step, Urgency, WriteArgs, F16,
};
use std::ffi::CString;
use std::mem;
use std::os::raw::{c_char, c_int, c_void};

const KV_HEADS: usize = 2;
const Q_HEADS: usize = 4;
const DIM: usize = 64;

fn options() -> CacheOptions {
    CacheOptions {
        num_layers: 1,
        num_kv_heads: KV_HEADS as i32,
        num_q_heads: Q_HEADS as i32,
        head_dim_k: DIM as i32,
        num_blocks: 64,
        ..Default::default()
    }
}

/// The half of a number whose mantissa fits.
fn half(x: f32) -> F16 {
    let bits = x.to_bits();
    let (sign, exponent) = ((bits >> 16) & 0x8000, ((bits >> 23) & 0xff) as i32 - 127 + 15);
    if exponent <= 0 {
        return F16(sign as u16);
    }
    F16((sign | (exponent as u32) << 10 | (bits >> 13) & 0x3ff) as u16)
}

fn float(x: F16) -> f32 {
    let bits = u32::from(x.0);
    let exponent = (bits >> 10) & 0x1f;
    let sign = if bits & 0x8000 == 0 { 1.0 } else { -1.0 };
    let fraction = (bits & 0x3ff) as f32 / 1024.0;
    match exponent {
        0 => sign * fraction * 2.0_f32.powi(-14),
        _ => sign * (1.0 + fraction) * 2.0_f32.powi(exponent as i32 - 15),
    }
}

fn wave(tokens: usize, heads: usize, step: f32) -> Vec<F16> {
    (0..tokens * heads * DIM).map(|i| half((i as f32 * step).sin())).collect()
}

/// K, V and Q of `tokens` tokens.
fn arrays(tokens: usize) -> [Vec<F16>; 3] {
    [wave(tokens, KV_HEADS, 0.37), wave(tokens, KV_HEADS, 0.11), wave(tokens, Q_HEADS, 0.71)]
}

/// Grows a sequence by slices and returns what attention gave.
fn grow(cache: &mut Cache, sequence: Sequence, tokens: usize) -> Vec<F16> {
    let [key, value, q] = arrays(tokens);
    let mut out = vec![F16(0x7e00); q.len()];
    let mut step = cache.begin_step().unwrap();
    step.append(&[Demand::new(sequence, tokens as i32)]).unwrap();
    step.write(0, &key, &value).unwrap();
    step.attend(0, &q, &mut out).unwrap();
    step.end().unwrap();
    out
}

fn assert_near(seen: &[F16], expected: &[F16]) {
    assert_eq!(seen.len(), expected.len());
    for (i, (a, b)) in seen.iter().zip(expected).enumerate() {
        let (a, b) = (float(*a), float(*b));
        assert!((a - b).abs() < 4e-3, "element {i}: {a} instead of {b}");
    }
}

/// A cache with a sequence of 100 tokens, and what attention gave for them.
fn filled(device: &Device, options: &CacheOptions) -> (Cache, Sequence, Vec<F16>) {
    let mut cache = Cache::create(device, options).unwrap();
    let sequence = cache.create_sequence(&SequenceOptions::default()).unwrap();
    let out = grow(&mut cache, sequence, 100);
    (cache, sequence, out)
}

#[test]
fn slices_give_what_the_host_gives() {
    let device = match gpu() {
        Some(device) => device,
        None => return,
    };
    let (mut ours, sequence, out) = filled(&device, &options());
    let (mut theirs, other, expected) = filled(&host(), &options());
    assert_near(&out, &expected);
    assert_near(&grow(&mut ours, sequence, 1), &grow(&mut theirs, other, 1));
    // A larger call than before, after a smaller one.
    assert_near(&grow(&mut ours, sequence, 150), &grow(&mut theirs, other, 150));
    ours.verify_accounts().unwrap();
    assert!(device.json().unwrap().contains("slices of the host"));
    assert!(device.verify().outcome.is_ok());
}

/// The driver's functions for graphs.
struct Driver {
    library: *mut c_void,
}

#[link(name = "dl")]
extern "C" {
    fn dlopen(name: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}

impl Driver {
    fn open() -> Self {
        let name = CString::new("libcuda.so.1").unwrap();
        // SAFETY: the library's constructors do no harm.
        let library = unsafe { dlopen(name.as_ptr(), 2) };
        assert!(!library.is_null());
        Self { library }
    }

    /// Calls a function of pointers and integers.
    unsafe fn call(&self, name: &str, arguments: [usize; 3]) {
        let c_name = CString::new(name).unwrap();
        let function = dlsym(self.library, c_name.as_ptr());
        assert!(!function.is_null(), "{name}");
        let function: unsafe extern "C" fn(usize, usize, usize) -> c_int = mem::transmute(function);
        assert_eq!(function(arguments[0], arguments[1], arguments[2]), 0, "{name}");
    }

    /// Makes the context of the first GPU that of this thread.
    unsafe fn use_first_gpu(&self) {
        let (mut gpu, mut context): (c_int, usize) = (0, 0);
        self.call("cuInit", [0, 0, 0]);
        self.call("cuDeviceGet", [&mut gpu as *mut c_int as usize, 0, 0]);
        let result = &mut context as *mut usize as usize;
        self.call("cuDevicePrimaryCtxRetain", [result, gpu as usize, 0]);
        self.call("cuCtxSetCurrent", [context, 0, 0]);
    }
}

/// Arrays of a decode step of one token in memory of the device.
struct Decode {
    key: Memory,
    value: Memory,
    q: Memory,
    out: Memory,
}

fn bytes_of(halves: &[F16]) -> Vec<u8> {
    halves.iter().flat_map(|h| h.0.to_ne_bytes()).collect()
}

impl Decode {
    fn new(device: &Device) -> Self {
        let [key, value, q] = arrays(1);
        let on_device = |halves: &[F16]| {
            let bytes = bytes_of(halves);
            let request = AllocationRequest { bytes: bytes.len() as u64, ..Default::default() };
            let request =
                AllocationRequest { purpose: kvarena::Purpose::IntermediateBuffers, ..request };
            let mut memory = device.allocate(&request).unwrap();
            memory.write(0, &bytes).unwrap();
            memory
        };
        let out = on_device(&vec![F16(0x7e00); q.len()]);
        Self { key: on_device(&key), value: on_device(&value), q: on_device(&q), out }
    }

    fn args(&self) -> (WriteArgs, AttendArgs) {
        let dtype = Dtype::F16.into();
        let write = WriteArgs {
            key: self.key.as_ptr(),
            value: self.value.as_ptr(),
            dtype,
            ..Default::default()
        };
        let attend = AttendArgs {
            q: self.q.as_ptr(),
            out: self.out.as_ptr(),
            q_dtype: dtype,
            out_dtype: dtype,
            ..Default::default()
        };
        (write, attend)
    }

    fn result(&self) -> Vec<F16> {
        let mut bytes = vec![0; self.out.bytes()];
        self.out.read(0, &mut bytes).unwrap();
        bytes.chunks(2).map(|b| F16(u16::from_ne_bytes([b[0], b[1]]))).collect()
    }
}

#[test]
fn pointers_on_a_stream_of_the_engine() {
    let device = match gpu() {
        Some(device) => device,
        None => return,
    };
    let (mut ours, sequence, _) = filled(&device, &options());
    let (mut theirs, other, _) = filled(&host(), &options());
    let stream = device.create_stream().unwrap();
    let decode = Decode::new(&device);
    let (write, attend) = decode.args();
    let mut step = ours.begin_step_on(&stream).unwrap();
    assert_eq!(step.stream_ptr().unwrap(), stream.as_ptr());
    step.append(&[Demand::new(sequence, 1)]).unwrap();
    let batch = step.device_batch().unwrap();
    assert_eq!((batch.num_rows, batch.num_tokens, batch.max_length_tokens), (1, 1, 101));
    // SAFETY: the arrays live until the stream is waited for.
    unsafe {
        step.write_raw(&write).unwrap();
        step.attend_raw(&attend).unwrap();
    }
    step.end().unwrap();
    stream.synchronize().unwrap();
    assert_near(&decode.result(), &grow(&mut theirs, other, 1));
}

/// Queues one decode step that `launch` runs.
fn replay(cache: &mut Cache, shape: &RecordedStep, sequence: Sequence, launch: impl Fn(&Step<'_>)) {
    let mut step = cache.begin_step().unwrap();
    step.append_recorded(shape, &[Demand::new(sequence, 1)], Urgency::Growth).unwrap();
    launch(&step);
    step.end().unwrap();
    cache.synchronize().unwrap();
}

#[test]
fn a_recorded_step_is_replayed() {
    let device = match gpu() {
        Some(device) => device,
        None => return,
    };
    let driver = Driver::open();
    let stream = device.create_stream().unwrap();
    let attached = Attached { stream: Some(&stream), ..Default::default() };
    let mut ours = Cache::create_with(&device, &options(), attached).unwrap();
    let sequence = ours.create_sequence(&SequenceOptions::default()).unwrap();
    grow(&mut ours, sequence, 100);
    let (mut theirs, other, _) = filled(&host(), &options());
    let decode = Decode::new(&device);
    let (write, attend) = decode.args();
    let shape = RecordedStep { num_rows: 1, ..Default::default() };
    let raw = stream.as_ptr() as usize;
    let (mut graph, mut executable) = (0_usize, 0_usize);
    // SAFETY: the arrays live as long as the graph, and the driver's calls are as its manual says.
    unsafe {
        driver.use_first_gpu();
        driver.call("cuStreamBeginCapture_v2", [raw, 2, 0]);
        let mut recording = ours.begin_recording(&shape, None).unwrap();
        assert_eq!(recording.batch().num_tokens, 1);
        assert_eq!(recording.device_batch().unwrap().num_rows, 1);
        recording.write_raw(&write).unwrap();
        recording.attend_raw(&attend).unwrap();
        recording.end().unwrap();
        driver.call("cuStreamEndCapture", [raw, &mut graph as *mut usize as usize, 0]);
        let result = &mut executable as *mut usize as usize;
        driver.call("cuGraphInstantiateWithFlags", [result, graph, 0]);
    }
    for _ in 0..40 {
        replay(&mut ours, &shape, sequence, |step| {
            assert_eq!(step.stream_ptr().unwrap(), stream.as_ptr());
            // SAFETY: as above.
            unsafe { driver.call("cuGraphLaunch", [executable, raw, 0]) };
        });
        assert_near(&decode.result(), &grow(&mut theirs, other, 1));
    }
    assert_eq!(ours.sequence_info(sequence).unwrap().length_tokens, 140);
    assert_eq!(ours.stats().unwrap().steps_lost, 0);
    // SAFETY: the graph has run.
    unsafe {
        driver.call("cuGraphExecDestroy", [executable, 0, 0]);
        driver.call("cuGraphDestroy", [graph, 0, 0]);
    }
}
