//! What moves between threads and what other threads may ask.

mod common;

use common::{cache, grow, new_sequence};
use kvarena::{Device, Error, HostOptions, Monitor, Observer, Pool, Stream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{mpsc, Arc};
use std::thread;

fn send<T: Send>() {}
fn sync<T: Sync>() {}

#[test]
fn types_are_as_safe_as_promised() {
    send::<kvarena::Cache>();
    send::<Pool>();
    send::<kvarena::Kernels>();
    send::<Stream>();
    send::<Device>();
    sync::<Device>();
    send::<Observer>();
    sync::<Observer>();
    send::<Monitor>();
    sync::<Monitor>();
    send::<Error>();
    sync::<Error>();
}

#[test]
fn a_cache_moves_to_another_thread_while_others_watch() {
    let mut cache = cache(8);
    let observer = cache.observer();
    let is_over = Arc::new(AtomicBool::new(false));
    let over = is_over.clone();
    let watcher = thread::spawn(move || {
        let (mut last, mut answers) = (0, 0_u64);
        while !over.load(Ordering::Acquire) {
            let stats = observer.snapshot().expect("the cache lives");
            assert!(stats.step >= last && stats.num_blocks == 8);
            last = stats.step;
            observer.has_pending_work().unwrap();
            answers += 1;
        }
        answers
    });
    let worker = thread::spawn(move || {
        for _ in 0..20 {
            let sequence = new_sequence(&mut cache);
            grow(&mut cache, sequence, 30, 1.0);
            cache.destroy(&[sequence], None).unwrap();
        }
        cache.publish().unwrap();
        cache
    });
    let cache = worker.join().unwrap();
    is_over.store(true, Ordering::Release);
    watcher.join().unwrap();
    let stats = observer.snapshot().unwrap();
    assert_eq!(
        (stats.sequences_ever, stats.sequences, stats.step),
        (20, 0, cache.stats().unwrap().step)
    );
    drop(cache);
    assert!(matches!(observer.snapshot(), Err(Error::StaleHandle(_))));
}

#[test]
fn a_cache_ends_while_somebody_asks() {
    let cache = cache(8);
    let observer = cache.observer();
    let (started, has_started) = mpsc::channel();
    let asking = thread::spawn(move || {
        let mut answers = 0_u64;
        loop {
            match observer.snapshot() {
                Ok(_) => answers += 1,
                Err(Error::StaleHandle(_)) => return answers,
                // While the handle closes.
                Err(Error::FailedPrecondition(_)) => {}
                Err(other) => panic!("{other:?}"),
            }
            if answers == 1 {
                started.send(()).unwrap();
            }
        }
    });
    has_started.recv().unwrap();
    drop(cache);
    assert!(asking.join().unwrap() >= 1);
}

#[test]
fn a_cache_keeps_its_device() {
    let device = Device::open_host(&HostOptions { capacity_bytes: 1 << 24, ..Default::default() });
    let mut cache = kvarena::Cache::create(&device.unwrap(), &common::options(4)).unwrap();
    let sequence = new_sequence(&mut cache);
    grow(&mut cache, sequence, 3, 1.0);
    assert_eq!(cache.device().info().unwrap().total_bytes, 1 << 24);
}
