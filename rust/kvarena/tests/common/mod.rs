//! What the tests share.
#![allow(dead_code)]

use kvarena::{Cache, CacheOptions, CudaOptions, Device, HostOptions, Sequence, SequenceOptions};

pub const HEADS: usize = 2;
pub const DIM: usize = 16;
pub const ROW: usize = HEADS * DIM;

pub fn host() -> Device {
    Device::open_host(&HostOptions::default()).unwrap()
}

/// The first GPU; without one, or without CUDA in the library, `None` and one line.
pub fn gpu() -> Option<Device> {
    match Device::open_cuda(&CudaOptions::default()) {
        Ok(device) => Some(device),
        Err(error) if std::env::var_os("KVARENA_REQUIRE_GPU").is_some() => panic!("{error}"),
        Err(error) => {
            println!("Skipped: no GPU: {error}");
            None
        }
    }
}

/// A cache of `blocks` blocks of 16 tokens, 2 heads of 16, one layer.
pub fn options(blocks: i64) -> CacheOptions {
    CacheOptions {
        num_layers: 1,
        num_kv_heads: HEADS as i32,
        head_dim_k: DIM as i32,
        num_q_heads: HEADS as i32,
        num_blocks: blocks,
        ..Default::default()
    }
}

pub fn cache(blocks: i64) -> Cache {
    Cache::create(&host(), &options(blocks)).unwrap()
}

pub fn new_sequence(cache: &mut Cache) -> Sequence {
    cache.create_sequence(&SequenceOptions::default()).unwrap()
}

/// Appends `tokens` tokens whose K is 0.25 and whose V is `value`.
pub fn grow(cache: &mut Cache, sequence: Sequence, tokens: i32, value: f32) {
    let mut step = cache.begin_step().unwrap();
    step.append(&[kvarena::Demand::new(sequence, tokens)]).unwrap();
    let length = tokens as usize * ROW;
    step.write(0, &vec![0.25; length], &vec![value; length]).unwrap();
    step.end().unwrap();
}
