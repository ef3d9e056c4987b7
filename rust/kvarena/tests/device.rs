//! Devices, their memory, plans and monitors.

mod common;

use common::{cache, grow, host, new_sequence};
use kvarena::{
    devices_json, plan_json, presets_json, AllocationRequest, CudaOptions, Device, Error,
    HostOptions, MemoryKind, Monitor, MonitorOptions, MonitorParts, Place, Purpose,
};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::{Arc, Mutex};

#[test]
fn the_library_says_what_it_is() {
    assert_eq!(kvarena::version(), env!("CARGO_PKG_VERSION"));
    assert!(kvarena::abi() >= kvarena::sys::KVARENA_ABI);
    assert!(kvarena::now_ns() > 0);
    assert!(devices_json(false).unwrap().starts_with('{'));
}

#[test]
fn a_device_knows_its_memory() {
    let device =
        Device::open_host(&HostOptions { capacity_bytes: 1 << 20, ..Default::default() }).unwrap();
    assert_eq!(device.name().unwrap(), "host");
    let request = AllocationRequest {
        bytes: 1000,
        purpose: Purpose::KvCache,
        description: Some("a pool of the test".to_string()),
        ..Default::default()
    };
    let mut memory = device.allocate(&request).unwrap();
    assert_eq!(memory.as_ptr() as usize % 256, 0);
    assert_eq!(device.info().unwrap().tracked_bytes, 1000);
    assert!(device.json().unwrap().contains("a pool of the test"));
    assert!(device.report().unwrap().contains("KVCache"));
    memory.write(10, b"kvarena").unwrap();
    let mut read = [0; 7];
    memory.read(10, &mut read).unwrap();
    assert_eq!(&read, b"kvarena");
    for (offset, length) in [(994, 7), (1001, 0), (usize::MAX, 2)] {
        let refused = memory.write(offset, &b"kvarena"[..length]);
        assert!(matches!(refused, Err(Error::InvalidArgument(_))), "{offset} {length}");
    }
    // SAFETY: the memory exists, and the stream's work has ended before it is read.
    unsafe {
        let (place, ordinal) = device.place_of(memory.as_ptr(), 1000).unwrap();
        assert_eq!((place, ordinal), (Place::HostDevice, None));
        let stream = device.create_stream().unwrap();
        device.fill(memory.as_ptr(), 7, 1000, &stream).unwrap();
        device.copy(memory.as_ptr(), b"host".as_ptr().cast(), 4, &stream).unwrap();
        stream.synchronize().unwrap();
    }
    let mut start = [0; 5];
    memory.read(0, &mut start).unwrap();
    assert_eq!(&start, b"host\x07");
    let verdict = device.verify();
    assert!(verdict.outcome.is_ok() && verdict.json.starts_with('{'), "{verdict:?}");
    device.report_usage("activations", Purpose::IntermediateBuffers, 5).unwrap();
    assert!(device.json().unwrap().contains("activations"));
    device.report_usage("activations", Purpose::IntermediateBuffers, 0).unwrap();
    let error = device.allocate(&AllocationRequest { bytes: 1 << 21, ..request.clone() });
    let error = error.map(|_| ()).unwrap_err();
    assert!(matches!(error, Error::InsufficientVram(_)), "{error:?}");
    assert!(device.describe(&error).lines().count() > 1, "{}", device.describe(&error));
    let staging = AllocationRequest { kind: MemoryKind::Staging, ..request.clone() };
    assert!(matches!(device.allocate(&staging).map(|_| ()), Err(Error::Unsupported(_))));
    drop(memory);
    assert_eq!(device.info().unwrap().tracked_bytes, 0);

    let mut own = vec![0_u8; 64];
    let own_request = AllocationRequest { bytes: 64, ..request };
    // SAFETY: the memory lives until it is unregistered.
    unsafe {
        device.register(own.as_mut_ptr().cast(), &own_request, true).unwrap();
        assert_eq!(device.info().unwrap().tracked_bytes, 64);
        device.unregister(own.as_mut_ptr().cast()).unwrap();
        assert!(device.unregister(own.as_mut_ptr().cast()).is_err());
    }
}

#[test]
fn a_gpu_that_is_not_there_is_an_error() {
    let error = Device::open_cuda(&CudaOptions { ordinal: 99, ..Default::default() });
    match error.map(|_| ()).unwrap_err() {
        Error::Unsupported(_) | Error::InvalidArgument(_) | Error::DeviceError(_) => {}
        other => panic!("{other:?}"),
    }
}

#[test]
fn plans_are_json() {
    assert!(presets_json().unwrap().contains("models"));
    let plan = plan_json(r#"{"model": "qwen2.5-0.5b", "memory_bytes": 8589934592}"#).unwrap();
    assert!(plan.len() > 1024 && plan.contains("num_blocks"), "{plan}");
    let error = plan_json(r#"{"model": "no such model", "memory_bytes": 1}"#).unwrap_err();
    assert!(matches!(error.error, Error::NotFound(_)), "{error:?}");
    assert!(error.message.contains("no such model"), "{error}");
    assert!(matches!(plan_json("{").unwrap_err().error, Error::ParseError(_)));
}

fn answer_of(port: u16, path: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn a_monitor_watches() {
    let mut cache = cache(8);
    let sequence = new_sequence(&mut cache);
    grow(&mut cache, sequence, 16, 1.0);
    let told = Arc::new(Mutex::new(Vec::new()));
    let (unhealthy, pressed) = (told.clone(), told.clone());
    let options = MonitorOptions {
        no_thread: true,
        serve_http: true,
        pressure_period_ns: -1,
        ..Default::default()
    };
    let parts = MonitorParts {
        on_unhealthy: Some(Box::new(move |code, text| {
            unhealthy.lock().unwrap().push(format!("{code}: {text}"));
        })),
        on_pressure: Some(Box::new(move |name, from, to, _| {
            pressed.lock().unwrap().push(format!("{name} {from:?} {to:?}"));
        })),
        ..Default::default()
    };
    let monitor = Monitor::start(&options, parts).unwrap();
    monitor.watch(&cache, "llm").unwrap();
    let twice = monitor.watch(&cache, "llm");
    assert!(matches!(twice, Err(Error::FailedPrecondition(_))), "{twice:?}");
    assert!(monitor.check().unwrap());
    assert!(monitor.is_healthy().unwrap());
    assert!(answer_of(monitor.port().unwrap(), "/health").starts_with("HTTP/1.1 200"));
    assert!(monitor.health_json().unwrap().contains("healthy"));
    assert!(monitor.stats_json().unwrap().contains("llm"));
    assert!(monitor.metrics().unwrap().contains("kvarena_"));
    // Full: the pressure is told.
    grow(&mut cache, sequence, 7 * 16, 1.0);
    monitor.check().unwrap();
    let heard = told.lock().unwrap().clone();
    assert!(heard.contains(&"llm Normal Exhausted".to_string()), "{heard:?}");
    monitor.report_engine("llm", 3, 1).unwrap();
    assert!(matches!(monitor.report_engine("other", 3, 1), Err(Error::NotFound(_))));
    monitor.acknowledge().unwrap();
    monitor.unwatch("llm").unwrap();
    assert!(monitor.unwatch("llm").is_err());
    let other = host();
    monitor.watch_device(&other).unwrap();
    monitor.unwatch_device(&other).unwrap();
    drop(monitor);
    assert_eq!(Arc::strong_count(&told), 1);

    let silent = Monitor::start(&MonitorOptions::default(), MonitorParts::default()).unwrap();
    assert!(matches!(silent.port(), Err(Error::FailedPrecondition(_))));
    let bad = MonitorOptions { http_port: 70_000, serve_http: true, ..Default::default() };
    assert!(Monitor::start(&bad, MonitorParts::default()).is_err());
}
