//! Caches whose layers keep different data. Keys are zero, so that a token's output is the mean of the
//! values that it sees; the value of token i is i.

use kvarena::{
    Attached, Cache, CacheOptions, Demand, Device, Dtype, Error, GroupKind, GroupLayer,
    HostOptions, LayerGroup, PlaneKind, Prompt, Sequence, SequenceOptions, WriteCrossArgs,
    WriteIndexArgs,
};

const HEADS: usize = 2;
const DIM: usize = 16;
const ROW: usize = HEADS * DIM;
const WINDOW: i64 = 40;
const ENCODER: i32 = 20;

fn group(kind: GroupKind, limit_tokens: i64, layer: i32) -> LayerGroup {
    LayerGroup {
        kind,
        layers: vec![layer.into()],
        limit_tokens,
        num_kv_heads: HEADS as i32,
        head_dim_k: DIM as i32,
        dtype: kvarena::Dtype::F32,
        ..Default::default()
    }
}

fn open(groups: &[LayerGroup]) -> kvarena::Result<Cache> {
    let device = Device::open_host(&HostOptions::default())?;
    let options = CacheOptions {
        num_blocks: 40,
        num_q_heads: HEADS as i32,
        max_sequences: 8,
        max_sequence_tokens: 256,
        num_threads: 1,
        page_sequence_tokens: 1024,
        ..Default::default()
    };
    Cache::create_with(&device, &options, Attached { groups, ..Default::default() })
}

fn values(first: i32, count: usize) -> Vec<f32> {
    (0..count * ROW).map(|i| (first + (i / ROW) as i32) as f32).collect()
}

/// Appends tokens, and returns the output of the last one in each of three layers.
fn append(cache: &mut Cache, id: Sequence, first: i32, count: usize, encoder: bool) -> [f32; 3] {
    let (zeros, mut found) = (vec![0.0_f32; count * ROW], [0.0; 3]);
    let mut step = cache.begin_step().unwrap();
    step.append(&[Demand::new(id, count as i32)]).unwrap();
    for (layer, found) in (0..3).zip(&mut found) {
        let mut out = zeros.clone();
        if layer < 2 {
            step.write(layer, &zeros, &values(first, count)).unwrap();
            step.attend(layer, &zeros, &mut out).unwrap();
        } else {
            if encoder {
                let keys = vec![0.0_f32; ENCODER as usize * ROW];
                let its = values(1000, ENCODER as usize);
                step.write_cross(layer, id, ENCODER as usize, &keys, &its).unwrap();
            }
            step.attend(layer, &zeros, &mut out).unwrap();
        }
        *found = out[(count - 1) * ROW];
    }
    step.end().unwrap();
    found
}

fn mean(first: i64, last: i64) -> f32 {
    (first + last) as f32 / 2.0
}

fn check(found: [f32; 3], last: i64) {
    let expected = [mean(0, last), mean((last + 1 - WINDOW).max(0), last), mean(1000, 1019)];
    for (a, b) in found.iter().zip(expected) {
        assert!((a - b).abs() < 1e-2, "{found:?} {expected:?}");
    }
}

#[test]
fn an_encoder_is_written_before_it_is_read() {
    let groups = [group(GroupKind::Full, 0, 0), group(GroupKind::Cross, i64::from(ENCODER), 1)];
    let mut cache = open(&groups).unwrap();
    let options = SequenceOptions { cross_tokens: ENCODER, ..Default::default() };
    let id = cache.create_sequence(&options).unwrap();
    let keys = vec![0.0_f32; ENCODER as usize * ROW];
    let mut out = vec![0.0_f32; ROW];
    let mut step = cache.begin_step().unwrap();
    step.append(&[Demand::new(id, 1)]).unwrap();
    let refused = step.attend(1, &keys[..ROW], &mut out);
    assert!(matches!(refused, Err(Error::FailedPrecondition(_))));
    step.write_cross_scaled(1, id, ENCODER as usize, &keys, &keys, None).unwrap();
    step.attend(1, &keys[..ROW], &mut out).unwrap();
    step.end().unwrap();
}

#[test]
fn each_layer_sees_the_tokens_of_its_group() {
    let groups = [
        group(GroupKind::Full, 0, 0),
        group(GroupKind::Window, WINDOW, 1),
        group(GroupKind::Cross, i64::from(ENCODER), 2),
    ];
    let mut cache = open(&groups).unwrap();
    let options = SequenceOptions { cross_tokens: ENCODER, ..Default::default() };
    let id = cache.create_sequence(&options).unwrap();
    check(append(&mut cache, id, 0, 100, true), 99);
    check(append(&mut cache, id, 100, 1, false), 100);

    let parts = cache.parts().unwrap();
    assert_eq!(parts.len(), 3);
    let pages = cache.pages().unwrap();
    assert_eq!(pages.of_groups, parts.iter().map(|p| p.pages).sum::<i64>());
    assert_eq!(cache.group_blocks(id, 1).unwrap().first_block, 3);
    assert_eq!(cache.restorable_length(id, 50).unwrap(), 0);
    assert!(cache.truncate(id, 50, None).is_err());

    // Another sequence from the same blocks goes on as this one would have.
    let mut blocks: Vec<_> = (0..3).map(|p| cache.group_blocks(id, p).unwrap()).collect();
    assert!(cache.create_sequence_from(101, &blocks, &options).is_err(), "no generations");
    for part in &mut blocks {
        let generation = |b: &i32| cache.block(*b).unwrap().generation;
        part.generations = part.blocks.iter().map(generation).collect();
    }
    let prompt = Prompt { salt: 7, ..Default::default() }; // without a prefix cache no salt matters
    let other = cache.create_sequence_from_with(101, &blocks, &prompt, &options).unwrap();
    cache.destroy(&[other], None).unwrap();
    let twin = cache.create_sequence_from(101, &blocks, &options).unwrap();
    cache.destroy(&[id], None).unwrap();
    check(append(&mut cache, twin, 101, 3, false), 103);
    {
        let mut step = cache.begin_step().unwrap();
        step.append(&[Demand::new(twin, 1)]).unwrap();
        assert_eq!(step.group_batch(1).unwrap().num_rows, 1);
        assert!(step.group_batch(3).is_err());
        let one = vec![0.0_f32; ROW];
        assert!(matches!(step.write(7, &one, &one), Err(Error::InvalidArgument(_))));
    }
    cache.destroy(&[twin], None).unwrap();
    assert_eq!(cache.pages().unwrap().of_groups, 0);
    cache.verify_accounts().unwrap();
}

/// V is the first 8 of the 16 elements of K. The second layer reads those of the first.
#[test]
fn latents_have_their_values_in_their_keys() {
    let latent = LayerGroup {
        layers: vec![0.into(), GroupLayer { layer: 1, reads_layer: Some(0) }],
        num_kv_heads: 1,
        head_dim_v: 8,
        value_in_key: true,
        ..group(GroupKind::Full, 0, 0)
    };
    let mut cache = open(&[latent]).unwrap();
    let id = cache.create_sequence(&SequenceOptions::default()).unwrap();
    let key: Vec<f32> = (0..16).map(|i| i as f32).collect();
    let (q, mut out) = (vec![1.0_f32; ROW], [0.0_f32; HEADS * 8]);
    let mut step = cache.begin_step().unwrap();
    step.append(&[Demand::new(id, 1)]).unwrap();
    assert!(step.write(0, &key, &key).is_err());
    step.write::<f32>(0, &key, &[]).unwrap();
    assert!(step.write::<f32>(1, &key, &[]).is_err(), "it has no K of its own");
    for layer in 0..2 {
        step.attend(layer, &q, &mut out).unwrap();
        assert!(out.iter().enumerate().all(|(i, x)| *x == (i % 8) as f32), "{out:?}");
    }
    step.end().unwrap();
}

#[test]
fn an_encoder_is_written_by_pointers() {
    let groups = [group(GroupKind::Full, 0, 0), group(GroupKind::Cross, i64::from(ENCODER), 1)];
    let mut cache = open(&groups).unwrap();
    let options = SequenceOptions { cross_tokens: ENCODER, ..Default::default() };
    let id = cache.create_sequence(&options).unwrap();
    let (keys, its) = (vec![0.0_f32; ENCODER as usize * ROW], values(1000, ENCODER as usize));
    let (q, mut out) = (vec![0.0_f32; ROW], vec![0.0_f32; ROW]);
    let mut step = cache.begin_step().unwrap();
    step.append(&[Demand::new(id, 1)]).unwrap();
    let mut args = WriteCrossArgs {
        sequence: id.raw() + 1,
        key: keys.as_ptr().cast(),
        value: its.as_ptr().cast(),
        layer: 1,
        dtype: Dtype::F32.into(),
        ..Default::default()
    };
    // SAFETY: K and V are those of the encoder's tokens, and live until the work has ended.
    unsafe {
        assert!(matches!(step.write_cross_raw(&args), Err(Error::NotFound(_))));
        args.sequence = id.raw();
        step.write_cross_raw(&args).unwrap();
    }
    step.attend(1, &q, &mut out).unwrap();
    assert_eq!(out[0], mean(1000, 1019));
    step.abort().unwrap();
}

#[test]
fn what_is_no_group_is_refused() {
    assert!(open(&[LayerGroup { layers: vec![], ..group(GroupKind::Full, 0, 0) }]).is_err());
    assert!(open(&[group(GroupKind::Window, 0, 0)]).is_err());
    assert!(open(&[group(GroupKind::Full, 0, 0), group(GroupKind::Full, 0, 0)]).is_err());
    assert!(open(&[group(GroupKind::Unknown(9), 0, 0)]).is_err());
    assert!(open(&vec![group(GroupKind::Full, 0, 0); 40]).is_err());
}

#[test]
fn keys_of_an_index_are_where_the_plane_says() {
    const TOKENS: usize = 20;
    const INDEX: usize = 32;
    let mut of_index = group(GroupKind::Full, 0, 0);
    of_index.layers = vec![0.into(), 1.into()];
    of_index.index_dim = INDEX as i32;
    let mut cache = open(&[of_index]).unwrap();
    let id = cache.create_sequence(&SequenceOptions::default()).unwrap();
    let keys: Vec<f32> = (0..TOKENS * INDEX).map(|i| (1 + i / INDEX % 16) as f32).collect();
    let mut step = cache.begin_step().unwrap();
    step.append(&[Demand::new(id, TOKENS as i32)]).unwrap();
    assert!(step.write_index(1, &keys[1..]).is_err());
    step.write_index(0, &keys).unwrap();
    // By a pointer, and to another layer.
    let mut args = WriteIndexArgs {
        key: keys.as_ptr().cast(),
        dtype: Dtype::F32.into(),
        ..Default::default()
    };
    // SAFETY: the keys are those of the step's tokens, and live until it has ended.
    unsafe {
        args.layer = 2;
        assert!(matches!(step.write_index_raw(&args), Err(Error::InvalidArgument(_))));
        args.layer = 1;
        step.write_index_raw(&args).unwrap();
    }
    step.synchronize().unwrap();
    step.end().unwrap();

    let plane = cache.plane(1, PlaneKind::Index).unwrap();
    assert_eq!((plane.num_heads, plane.head_dim as usize), (1, INDEX));
    let blocks = cache.group_blocks(id, 0).unwrap().blocks;
    for token in 0..TOKENS {
        let (block, place) = (blocks[token / 16] as usize, token % 16);
        // SAFETY: the work has ended, and the plane describes memory of the host.
        let (byte, scale) = unsafe {
            let base = (plane.base as *const u8).add(block * plane.block_stride_bytes as usize);
            let scales = base.add(plane.scales_offset_bytes as usize) as *const f32;
            (*base.add(place * plane.token_stride_bytes as usize), *scales.add(place))
        };
        let element = f32::from(8 + byte % 8) * 2.0_f32.powi(i32::from(byte / 8) - 10);
        assert_eq!(element * scale, (1 + token % 16) as f32);
    }
    assert!(cache.plane(2, PlaneKind::Index).is_err());
}
