//! Caches, sequences and steps on the host device.

mod common;

use common::{cache, grow, host, new_sequence, options, HEADS, ROW};
use kvarena::{
    Attached, AttendArgs, AttendOptions, Cache, CacheOptions, Demand, Error, PlaneKind, Question,
    RecordedStep, SequenceOptions, Status, TileOrder, Urgency, WriteArgs,
};
use std::os::raw::c_void;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::{Arc, Mutex};

/// The crate's first example. Old versions of cargo compile examples of the documentation, but do not
/// tell the loader where the library is.
#[test]
fn the_first_example_runs() -> kvarena::Result<()> {
    let device = kvarena::Device::open_host(&Default::default())?;
    let mut cache = Cache::create(
        &device,
        &CacheOptions {
            num_layers: 1,
            num_kv_heads: 2,
            head_dim_k: 16,
            num_q_heads: 2,
            num_blocks: 8,
            ..Default::default()
        },
    )?;
    let sequence = cache.create_sequence(&SequenceOptions::default())?;

    let mut step = cache.begin_step()?;
    step.append(&[Demand::new(sequence, 3)])?;
    let (key, value, q) = ([0.5_f32; 3 * 32], [1.0_f32; 3 * 32], [0.5_f32; 3 * 32]);
    let mut out = [0.0_f32; 3 * 32];
    step.write(0, &key, &value)?;
    step.attend(0, &q, &mut out)?;
    step.end()?;
    assert!(out.iter().all(|x| (x - 1.0).abs() < 1e-3));
    Ok(())
}

/// Attention over few tokens, computed plainly: `[tokens][heads][dim]` of one sequence, causal.
fn plain_attention(q: &[f32], key: &[f32], value: &[f32], first: usize) -> (Vec<f32>, Vec<f32>) {
    let dim = ROW / HEADS;
    let (mut out, mut lse) = (vec![0.0; q.len()], vec![0.0; q.len() / dim]);
    for row in 0..q.len() / ROW {
        for head in 0..HEADS {
            let of =
                |array: &[f32], token: usize| array[token * ROW + head * dim..][..dim].to_vec();
            let mine = of(q, row);
            let seen = 0..first + row + 1;
            let dot = |token| -> f64 {
                let other = of(key, token);
                mine.iter().zip(&other).map(|(a, b)| f64::from(a * b)).sum::<f64>() / 4.0
            };
            let weights: Vec<f64> = seen.clone().map(|token| dot(token).exp()).collect();
            let sum: f64 = weights.iter().sum();
            lse[row * HEADS + head] = sum.ln() as f32;
            for (token, weight) in seen.zip(&weights) {
                for (e, v) in of(value, token).iter().enumerate() {
                    out[row * ROW + head * dim + e] += (weight / sum * f64::from(*v)) as f32;
                }
            }
        }
    }
    (out, lse)
}

fn wave(count: usize, step: f32) -> Vec<f32> {
    (0..count).map(|i| (i as f32 * step).sin()).collect()
}

fn assert_near(seen: &[f32], expected: &[f32]) {
    assert_eq!(seen.len(), expected.len());
    for (i, (a, b)) in seen.iter().zip(expected).enumerate() {
        assert!((a - b).abs() < 2e-5, "element {i}: {a} instead of {b}");
    }
}

#[test]
fn attention_is_that_of_all_tokens_so_far() {
    let f32_options = CacheOptions { dtype: kvarena::Dtype::F32, ..options(8) };
    let mut cache = Cache::create(&host(), &f32_options).unwrap();
    let sequence = new_sequence(&mut cache);
    let (key, value, q) = (wave(25 * ROW, 0.37), wave(25 * ROW, 0.11), wave(25 * ROW, 0.71));
    for (first, count) in [(0, 20), (20, 4), (24, 1)] {
        let range = first * ROW..(first + count) * ROW;
        let mut step = cache.begin_step().unwrap();
        let batch = step.append(&[Demand::new(sequence, count as i32)]).unwrap();
        assert_eq!(batch.num_tokens, count as i64);
        assert_eq!(step.slots().len(), count);
        step.write(0, &key[range.clone()], &value[range.clone()]).unwrap();
        let (mut out, mut lse) = (vec![0.0; count * ROW], vec![0.0; count * HEADS]);
        let with_lse = AttendOptions { lse: Some(&mut lse), ..Default::default() };
        step.attend_with(0, &q[range.clone()], &mut out, with_lse).unwrap();
        step.end().unwrap();
        let (expected, expected_lse) = plain_attention(&q[range], &key, &value, first);
        assert_near(&out, &expected);
        assert_near(&lse, &expected_lse);
    }
    let info = cache.sequence_info(sequence).unwrap();
    assert_eq!((info.length_tokens, info.num_blocks, info.waste_tokens), (25, 2, 7));
    cache.verify_accounts().unwrap();
}

#[test]
fn a_step_may_have_no_tokens() {
    let mut cache = cache(4);
    let sequence = new_sequence(&mut cache);
    let mut step = cache.begin_step().unwrap();
    step.append(&[Demand::new(sequence, 0)]).unwrap();
    step.write::<f32>(0, &[], &[]).unwrap();
    step.attend::<f32, f32>(0, &[], &mut []).unwrap();
    step.end().unwrap();
}

#[test]
fn raw_pointers_give_the_same() {
    let mut cache = cache(4);
    let sequence = new_sequence(&mut cache);
    let (key, q) = (wave(3 * ROW, 0.3), wave(3 * ROW, 0.5));
    let (mut safe, mut raw) = (vec![0.0_f32; 3 * ROW], vec![1.0_f32; 3 * ROW]);
    let mut step = cache.begin_step().unwrap();
    step.append(&[Demand::new(sequence, 3)]).unwrap();
    step.write(0, &key, &key).unwrap();
    step.attend(0, &q, &mut safe).unwrap();
    let pointer = |slice: &[f32]| slice.as_ptr().cast::<c_void>();
    let dtype = kvarena::Dtype::F32.into();
    // SAFETY: the arrays live until `synchronize`.
    unsafe {
        let write =
            WriteArgs { key: pointer(&key), value: pointer(&key), dtype, ..Default::default() };
        step.write_raw(&write).unwrap();
        step.attend_raw(&AttendArgs {
            q: pointer(&q),
            out: raw.as_mut_ptr().cast(),
            q_dtype: dtype,
            out_dtype: dtype,
            ..Default::default()
        })
        .unwrap();
        step.synchronize().unwrap();
    }
    step.end().unwrap();
    assert_eq!(safe, raw);
}

#[test]
fn a_step_that_is_dropped_is_aborted() {
    let mut cache = cache(4);
    let sequence = new_sequence(&mut cache);
    grow(&mut cache, sequence, 5, 1.0);
    let free = cache.stats().unwrap().free_blocks;
    {
        let mut step = cache.begin_step().unwrap();
        step.append(&[Demand::new(sequence, 40)]).unwrap();
    }
    assert_eq!(cache.sequence_info(sequence).unwrap().length_tokens, 5);
    assert_eq!(cache.stats().unwrap().free_blocks, free);
    // An early return drops it too, and the next step begins.
    let refused = (|| {
        let mut step = cache.begin_step()?;
        step.append(&[Demand::new(sequence, 1)])?;
        step.write(3, &[0.0_f32; ROW], &[0.0_f32; ROW])?;
        step.end()
    })();
    assert!(matches!(refused, Err(Error::InvalidArgument(_))), "{refused:?}");
    assert_eq!(cache.sequence_info(sequence).unwrap().length_tokens, 5);
    // So does a panic.
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let mut step = cache.begin_step().unwrap();
        step.append(&[Demand::new(sequence, 40)]).unwrap();
        panic!("on purpose");
    }));
    assert!(panicked.is_err());
    let step = cache.begin_step().unwrap();
    step.abort().unwrap();
    grow(&mut cache, sequence, 1, 1.0);
    assert_eq!(cache.sequence_info(sequence).unwrap().length_tokens, 6);
}

#[test]
fn exhausted_has_the_explanation() {
    let mut cache = cache(4);
    let big = SequenceOptions { owner: 77, ..Default::default() };
    let big = cache.create_sequence(&big).unwrap();
    let small = new_sequence(&mut cache);
    grow(&mut cache, big, 40, 1.0);
    grow(&mut cache, small, 3, 1.0);
    let mut step = cache.begin_step().unwrap();
    let error = step.append(&[Demand::new(small, 5), Demand::new(big, 30)]).unwrap_err();
    assert_eq!(step.failed_demand().unwrap(), Some(1));
    let explanation = match &error {
        Error::Exhausted(explanation) => explanation,
        other => panic!("{other:?}"),
    };
    assert_eq!((explanation.requested, explanation.usable, explanation.missing), (2, 0, 2));
    assert!(!explanation.fits);
    assert_eq!(explanation.blocks.as_ref().unwrap().referenced, 4);
    assert_eq!(explanation.largest[0].number, big.raw());
    assert_eq!(explanation.largest[0].owner, 77);
    assert_eq!(explanation.largest[0].references, 3);
    assert_eq!(explanation.returning[0], Some(3));
    assert_eq!(explanation.status.resource().name(), "block");
    assert!(error.to_string().contains("block"), "{error}");
    assert!(step.describe(&error).contains("out of blocks"), "{}", step.describe(&error));
    let text = step.explain_text(Question::Refused(&error)).unwrap();
    assert!(text.contains("2 requested"), "{text}");
    assert!(step.explain_json(Question::Refused(&error)).unwrap().contains("\"requested\""));
    // The step goes on without the large one.
    step.destroy(&[big], None).unwrap();
    step.append(&[Demand::new(small, 5)]).unwrap();
    step.write(0, &[0.0_f32; 5 * ROW], &[0.0_f32; 5 * ROW]).unwrap();
    step.end().unwrap();
    let answer = cache.explain(Question::Blocks(2, Urgency::Growth)).unwrap();
    assert!(answer.fits && answer.usable == 3, "{answer:?}");
    assert_eq!(answer.status.code(), "ok");
}

#[test]
fn exhausted_of_something_else_than_blocks() {
    let few = CacheOptions { max_sequences: 1, ..options(4) };
    let mut cache = Cache::create(&host(), &few).unwrap();
    new_sequence(&mut cache);
    match cache.create_sequence(&SequenceOptions::default()) {
        Err(Error::Exhausted(e)) => {
            assert_eq!(e.status.resource().name(), "sequence");
            assert!(e.blocks.is_none() && e.largest.is_empty());
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn slices_of_the_wrong_length_are_refused_before_anything_is_queued() {
    let mut cache = cache(4);
    let sequence = new_sequence(&mut cache);
    let mut step = cache.begin_step().unwrap();
    let before = step.write(0, &[0.0_f32; ROW], &[0.0_f32; ROW]).unwrap_err();
    assert!(matches!(before, Error::FailedPrecondition(_)));
    step.append(&[Demand::new(sequence, 2)]).unwrap();
    let wrong = |error: Error, given: u64, needed: u64| match error {
        Error::InvalidArgument(s) => {
            assert_eq!((s.subject(), s.required(), s.available()), (given, needed, needed));
            assert!(s.to_string().contains(&needed.to_string()), "{s}");
        }
        other => panic!("{other:?}"),
    };
    let row = ROW as u64;
    wrong(step.write(0, &[0.0_f32; ROW], &[0.0_f32; 2 * ROW]).unwrap_err(), row, 2 * row);
    wrong(step.write(0, &[0.0_f32; 2 * ROW], &[0.0_f32; ROW]).unwrap_err(), row, 2 * row);
    let (q, mut out) = ([0.0_f32; 2 * ROW], [0.0_f32; 2 * ROW]);
    wrong(step.attend(0, &q[1..], &mut out).unwrap_err(), 2 * row - 1, 2 * row);
    wrong(step.attend(0, &q, &mut out[1..]).unwrap_err(), 2 * row - 1, 2 * row);
    let (mut three, ones) = ([0.0; 3], [1; 3]);
    let lse = AttendOptions { lse: Some(&mut three), ..Default::default() };
    wrong(step.attend_with(0, &q, &mut out, lse).unwrap_err(), 3, 4);
    let sinks = AttendOptions { sinks: Some(&three), ..Default::default() };
    wrong(step.attend_with(0, &q, &mut out, sinks).unwrap_err(), 3, 2);
    let tree_mask = AttendOptions { tree_mask: Some(&ones), ..Default::default() };
    wrong(step.attend_with(0, &q, &mut out, tree_mask).unwrap_err(), 3, 2);
}

#[test]
fn sequences_fork_and_shrink() {
    let mut cache = cache(8);
    let parent = new_sequence(&mut cache);
    grow(&mut cache, parent, 20, 1.0);
    let child = cache.fork(parent, 18, &SequenceOptions::default()).unwrap();
    assert_eq!(cache.sequence_blocks(child).unwrap(), cache.sequence_blocks(parent).unwrap());
    let block = cache.sequence_blocks(parent).unwrap()[1];
    assert_eq!(cache.block(block).unwrap().reference_count, 2);
    grow(&mut cache, child, 1, 2.0);
    let (ours, theirs) =
        (cache.sequence_blocks(parent).unwrap(), cache.sequence_blocks(child).unwrap());
    assert_eq!(ours[0], theirs[0]);
    assert_ne!(ours[1], theirs[1]);
    assert_eq!(cache.slot(child, 18).unwrap(), i64::from(theirs[1]) * 16 + 2);
    let (mut tables, mut lengths) = ([9; 8], [0; 2]);
    cache.copy_tables(&[child, parent], &mut tables, 4, Some(&mut lengths)).unwrap();
    assert_eq!(tables, [theirs[0], theirs[1], -1, -1, ours[0], ours[1], -1, -1]);
    assert_eq!(lengths, [19, 20]);
    assert!(cache.copy_tables(&[child, parent], &mut tables[1..], 4, None).is_err());
    assert!(cache.copy_tables(&[child], &mut tables, 1, None).is_err());
    cache.truncate(parent, 16, None).unwrap();
    assert_eq!(cache.sequence_blocks(parent).unwrap().len(), 1);
    assert_eq!(cache.sequences().unwrap(), [parent, child]);
    cache.reserve(child, 100, Urgency::Growth).unwrap();
    assert_eq!(cache.sequence_info(child).unwrap().num_blocks, 7);
    let many = cache.destroy(&[parent, parent], None).unwrap_err();
    assert!(matches!(many, Error::DuplicateArgument(_)), "{many:?}");
    cache.destroy(&[child, parent], None).unwrap();
    assert!(matches!(cache.sequence_info(child), Err(Error::NotFound(_))));
    assert_eq!(cache.stats().unwrap().free_blocks, 8);
    assert!(cache.holders().unwrap().is_empty());
}

#[test]
fn a_list_longer_than_the_first_guess_is_whole() {
    let mut cache = cache(64);
    let all: Vec<_> = (0..50).map(|_| new_sequence(&mut cache)).collect();
    assert_eq!(cache.sequences().unwrap(), all);
    assert_eq!(cache.holders().unwrap().len(), 50);
    let long = new_sequence(&mut cache);
    grow(&mut cache, long, 40 * 16, 0.0);
    assert_eq!(cache.sequence_blocks(long).unwrap().len(), 40);
    // JSON of more than a kilobyte.
    cache.observer().request_details().unwrap();
    cache.publish().unwrap();
    let json = cache.observer().details_json().unwrap();
    assert!(json.len() > 1024 && json.trim_end().ends_with('}'), "{json}");
}

#[test]
fn tickets_protect_blocks() {
    let mut cache = cache(4);
    let sequence = new_sequence(&mut cache);
    grow(&mut cache, sequence, 64, 1.0);
    let ticket = cache.open_ticket(None).unwrap();
    cache.destroy(&[sequence], Some(ticket)).unwrap();
    let available = cache.available(Some(ticket)).unwrap();
    assert_eq!((available.now, available.after), (0, 4));
    assert!(!cache.can_allocate(1, Urgency::Growth).unwrap());
    assert_eq!(cache.stats().unwrap().oldest_ticket, Some(ticket));
    cache.retire(ticket).unwrap();
    assert!(cache.can_allocate(4, Urgency::Growth).unwrap());
    assert!(matches!(cache.retire(ticket), Err(Error::NotFound(_))));

    let stream = cache.device().create_stream().unwrap();
    let fence = cache.fence(&stream).unwrap();
    assert!(matches!(cache.retire(fence), Err(Error::FailedPrecondition(_))));
    stream.synchronize().unwrap();
    cache.publish().unwrap(); // retires the fences of steps
    assert!(matches!(cache.retire(fence), Err(Error::NotFound(_))));
}

#[test]
fn a_recording_needs_a_gpu() {
    let mut cache = cache(4);
    let shape = RecordedStep { num_rows: 1, ..Default::default() };
    let refused = cache.begin_recording(&shape, None).map(|_| ()).unwrap_err();
    assert!(matches!(refused, Error::Unsupported(_)), "{refused:?}");
    let step = cache.begin_step().unwrap();
    assert!(matches!(
        step.device_batch(),
        Err(Error::Unsupported(_) | Error::FailedPrecondition(_))
    ));
}

#[test]
fn the_cache_says_what_it_is() {
    let cache = cache(4);
    let filled = cache.options().unwrap();
    assert_eq!((filled.num_blocks, filled.block_size_tokens), (4, 16));
    assert_eq!(filled.tile_order, TileOrder::Rows);
    let (key, value) =
        (cache.plane(0, PlaneKind::Key).unwrap(), cache.plane(0, PlaneKind::Value).unwrap());
    assert_eq!((key.num_blocks, key.num_heads, key.head_dim), (4, 2, 16));
    assert_ne!(key.base, value.base);
    assert!(cache.plane(1, PlaneKind::Key).is_err());
    let target = cache.device().target().unwrap();
    let footprint = kvarena::footprint(&options(4), &target, 0).unwrap();
    assert_eq!(footprint.num_blocks, 4);
    let fitting = kvarena::fit(&options(4), &target, footprint.device_bytes).unwrap();
    assert!(fitting.num_blocks >= 4 && fitting.device_bytes <= footprint.device_bytes);
    assert!(cache.stats_json().unwrap().contains("\"free\""));
    assert!(!cache.stream_ptr().unwrap().is_null());
}

#[test]
fn bad_options_are_named() {
    let create = |options: CacheOptions| match Cache::create(&host(), &options) {
        Err(Error::InvalidArgument(status)) => status,
        other => panic!("{:?}", other.map(|_| ())),
    };
    let status: Status = create(CacheOptions { block_size_tokens: -1, ..options(4) });
    assert_eq!(status.option().as_deref(), Some("block_size_tokens"));
    let status = create(CacheOptions { dtype: kvarena::Dtype::Unknown(99), ..options(4) });
    assert_eq!(status.subject(), 99);
    assert!(format!("{status:?}").contains("invalid_argument"));
}

#[test]
fn every_change_is_in_the_operation_log() {
    type Lines = Arc<Mutex<Vec<String>>>;
    let run = |lines: Lines| {
        let log = move |o: &kvarena::Operation<'_>| {
            let line = format!("{:?} {:?} {:?} {}", o.kind, o.holder, o.blocks, o.outcome);
            lines.lock().unwrap().push(line);
        };
        let attached =
            Attached { name: Some("logged"), log: Some(Box::new(log)), ..Default::default() };
        let mut cache = Cache::create_with(&host(), &options(4), attached).unwrap();
        let sequence = new_sequence(&mut cache);
        grow(&mut cache, sequence, 20, 1.0);
        cache.destroy(&[sequence], None).unwrap();
    };
    let (first, second) = (Lines::default(), Lines::default());
    run(first.clone());
    run(second.clone());
    let first = first.lock().unwrap();
    assert!(
        first.iter().any(|l| l.starts_with("Allocate") && l.ends_with("[0, 1] 0")),
        "{first:?}"
    );
    assert!(first.iter().any(|l| l.starts_with("UnregisterHolder")));
    // The same calls give the same log, with the same numbers.
    assert_eq!(*first, *second.lock().unwrap());
}
