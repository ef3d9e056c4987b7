//! Imports, pins, deadlines, urgencies, strides, streams of steps: what engines steer by.

mod common;

use common::{cache, grow, host, new_sequence, options, ROW};
use kvarena::{
    AttendArgs, Cache, CacheOptions, Demand, Device, Dtype, Error, HolderDemand, HolderOptions,
    HostOptions, ImportState, PinOptions, Pool, PoolOptions, Question, SequenceOptions, Stream,
    Urgency, WriteArgs,
};

#[test]
fn an_import_is_published_or_fails() {
    let mut cache = cache(8);
    let options = SequenceOptions { owner: 42, ..Default::default() };
    let sequence = cache.import_sequence(20, &options, Urgency::Default).unwrap();
    let info = cache.sequence_info(sequence).unwrap();
    assert_eq!((info.import_state, info.length_tokens, info.owner), (ImportState::Filling, 20, 42));
    assert_eq!(cache.sequence_blocks(sequence).unwrap().len(), 2);
    let fork = cache.fork(sequence, 1, &SequenceOptions::default());
    assert!(matches!(fork, Err(Error::FailedPrecondition(_))));
    cache.publish_import(sequence).unwrap();
    assert_eq!(cache.sequence_info(sequence).unwrap().import_state, ImportState::None);
    grow(&mut cache, sequence, 1, 1.0);
    let other = cache.import_sequence(20, &options, Urgency::Growth).unwrap();
    cache.fail_import(other).unwrap();
    assert_eq!(cache.sequence_info(other).unwrap().import_state, ImportState::Failed);
    assert!(cache.publish_import(other).is_err());
    cache.destroy(&[other, sequence], None).unwrap();
    assert_eq!(cache.stats().unwrap().free_blocks, 8);
    let error = cache.import_sequence(1000, &options, Urgency::Default).unwrap_err();
    assert!(matches!(error, Error::Exhausted(_) | Error::ContextLengthExceeded(_)), "{error:?}");
}

#[test]
fn a_pin_outlives_its_sequence() {
    let mut cache = cache(8);
    let sequence = new_sequence(&mut cache);
    grow(&mut cache, sequence, 40, 1.0);
    let options = PinOptions {
        first_block: 1,
        num_blocks: 2,
        purpose: Some("transfer".to_string()),
        ..Default::default()
    };
    let pin = cache.pin(sequence, &options).unwrap();
    let blocks = cache.sequence_blocks(sequence).unwrap();
    assert_eq!(cache.pin_blocks(pin).unwrap(), blocks[1..]);
    cache.destroy(&[sequence], None).unwrap();
    assert_eq!(cache.stats().unwrap().free_blocks, 6);
    let holders = cache.holders().unwrap();
    assert_eq!((holders[0].holder, holders[0].references), (Some(pin), 2));
    assert_eq!(holders[0].purpose, "transfer");
    let ticket = cache.open_ticket(None).unwrap();
    cache.unpin(pin, Some(ticket)).unwrap();
    assert_eq!(cache.stats().unwrap().fenced, 2);
    cache.retire(ticket).unwrap();
    assert_eq!(cache.stats().unwrap().free_blocks, 8);
    assert!(matches!(cache.unpin(pin, None), Err(Error::NotFound(_))));
    let nothing = PinOptions { first_block: 9, ..Default::default() };
    let empty = new_sequence(&mut cache);
    assert!(matches!(cache.pin(empty, &nothing), Err(Error::InvalidArgument(_))));
}

#[test]
fn deadlines_change() {
    let mut cache = cache(8);
    let sequence = new_sequence(&mut cache);
    cache.set_deadline(sequence, 123).unwrap();
    assert_eq!(cache.sequence_info(sequence).unwrap().deadline_ns, 123);
    let mut pool = Pool::create(&PoolOptions { num_blocks: 2, ..Default::default() }).unwrap();
    let holder = pool.open_holder(&HolderOptions::default()).unwrap();
    pool.set_deadline(holder, 456).unwrap();
    assert_eq!(pool.holder(holder).unwrap().deadline_ns, 456);
}

#[test]
fn prompts_and_decode_have_urgencies_of_their_own() {
    let with_watermark = CacheOptions { watermark_blocks: 2, ..options(4) };
    let mut cache = Cache::create(&host(), &with_watermark).unwrap();
    let (old, new) = (new_sequence(&mut cache), new_sequence(&mut cache));
    let mut step = cache.begin_step().unwrap();
    let both = |urgency| [Demand::new(old, 32), Demand::with_urgency(new, 16, urgency)];
    let refused = step.append(&both(Urgency::Admission)).unwrap_err();
    assert!(matches!(refused, Error::Exhausted(_)), "{refused:?}");
    assert_eq!(step.failed_demand().unwrap(), Some(1));
    step.append(&both(Urgency::Growth)).unwrap();
    step.abort().unwrap();
    cache.promise(old, 16).unwrap();
    let why = cache.explain(Question::Blocks(2, Urgency::Admission)).unwrap();
    assert_eq!((why.usable, why.blocks.unwrap().reserved_blocks), (1, 1));

    let watermark = PoolOptions { num_blocks: 4, watermark_blocks: 2, ..Default::default() };
    let mut pool = Pool::create(&watermark).unwrap();
    let holders = [(); 2].map(|()| pool.open_holder(&HolderOptions::default()).unwrap());
    let demands = |urgency| {
        [
            HolderDemand::new(holders[0], 2, Urgency::Default),
            HolderDemand::new(holders[1], 1, urgency),
        ]
    };
    let (mut blocks, mut generations) = ([0; 3], [0; 3]);
    let (b, g) = (&mut blocks, &mut generations);
    assert!(pool.allocate_each(&demands(Urgency::Admission), Urgency::Growth, b, g).is_err());
    pool.allocate_each(&demands(Urgency::Growth), Urgency::Growth, b, g).unwrap();
}

#[test]
fn tokens_may_lie_apart() {
    let mut cache = cache(4);
    let sequence = new_sequence(&mut cache);
    let dense: Vec<f32> = (0..3 * ROW).map(|i| (i as f32 * 0.3).sin()).collect();
    // One row of q, k and v after the other, as a fused projection gives them.
    let fused: Vec<f32> = dense.chunks(ROW).flat_map(|row| [row, row, row].concat()).collect();
    let (mut expected, mut out) = (vec![0.0_f32; 3 * ROW], vec![0.0_f32; 6 * ROW]);
    let mut step = cache.begin_step().unwrap();
    step.append(&[Demand::new(sequence, 3)]).unwrap();
    step.write(0, &dense, &dense).unwrap();
    step.attend(0, &dense, &mut expected).unwrap();
    step.abort().unwrap();
    let mut step = cache.begin_step().unwrap();
    step.append(&[Demand::new(sequence, 3)]).unwrap();
    let (stride, dtype) = (3 * ROW as i64 * 4, Dtype::F32.into());
    // SAFETY: the arrays live until `synchronize`.
    unsafe {
        let row = |i: usize| fused.as_ptr().add(i * ROW).cast();
        let (q, key, value) = (row(0), row(1), row(2));
        step.write_raw(&WriteArgs {
            key,
            value,
            key_token_stride_bytes: stride,
            value_token_stride_bytes: stride,
            dtype,
            ..Default::default()
        })
        .unwrap();
        step.attend_raw(&AttendArgs {
            q,
            out: out.as_mut_ptr().cast(),
            q_token_stride_bytes: stride,
            out_token_stride_bytes: 2 * ROW as i64 * 4,
            q_dtype: dtype,
            out_dtype: dtype,
            ..Default::default()
        })
        .unwrap();
    }
    step.end().unwrap();
    cache.synchronize().unwrap();
    for (row, apart) in expected.chunks(ROW).zip(out.chunks(2 * ROW)) {
        assert_eq!(row, &apart[..ROW]);
        assert!(apart[ROW..].iter().all(|&x| x == 0.0));
    }
}

#[test]
fn a_step_has_the_stream_that_it_is_given() {
    let device = host();
    let mut cache = Cache::create(&device, &options(4)).unwrap();
    let sequence = new_sequence(&mut cache);
    grow(&mut cache, sequence, 3, 1.0);
    let first = cache.stream_ptr().unwrap();
    let stream = device.create_stream().unwrap();
    let mut out = vec![0.0_f32; ROW];
    let mut step = cache.begin_step_on(&stream).unwrap();
    assert_eq!(step.stream_ptr().unwrap(), stream.as_ptr());
    assert_ne!(first, stream.as_ptr());
    step.append(&[Demand::new(sequence, 1)]).unwrap();
    step.write(0, &[0.25_f32; ROW], &[5.0_f32; ROW]).unwrap();
    step.attend(0, &[0.0_f32; ROW], &mut out).unwrap();
    step.end().unwrap();
    assert!(out.iter().all(|x| (x - 2.0).abs() < 1e-3), "{out:?}");
    // The cache keeps the stream that it works on.
    let kept = stream.as_ptr();
    drop(stream);
    grow(&mut cache, sequence, 1, 1.0);
    assert_eq!(cache.stream_ptr().unwrap(), kept);
    drop(cache.begin_step_on(&device.create_stream().unwrap()).unwrap());
    cache.synchronize().unwrap();
    // Streams of other devices, and CUDA's, are refused.
    let foreign = host().create_stream().unwrap();
    let refused = [
        cache.begin_step_on(&foreign).map(|_| ()).unwrap_err(),
        cache.fence(&foreign).map(|_| ()).unwrap_err(),
        cache.open_ticket(Some(&foreign)).map(|_| ()).unwrap_err(),
    ];
    assert!(refused.iter().all(|e| matches!(e, Error::NotFound(_))), "{refused:?}");
    assert!(matches!(Stream::legacy(&device).map(|_| ()), Err(Error::Unsupported(_))));
    assert!(matches!(Stream::per_thread(&device).map(|_| ()), Err(Error::Unsupported(_))));
}

#[test]
fn a_step_has_tables_for_kernels_of_others() {
    let mut cache = cache(4);
    let sequence = new_sequence(&mut cache);
    grow(&mut cache, sequence, 18, 1.0);
    let mut step = cache.begin_step().unwrap();
    assert!(matches!(step.device_batch(), Err(Error::FailedPrecondition(_))));
    step.append(&[Demand::new(sequence, 2)]).unwrap();
    let batch = step.device_batch().unwrap();
    assert_eq!((batch.num_rows, batch.num_tokens, batch.max_length_tokens), (1, 2, 20));
    // SAFETY: on the host device the arrays are host memory, and the step has not ended.
    unsafe {
        assert_eq!((*batch.lengths, *batch.num_blocks), (20, 2));
        let table = batch.block_tables.offset(*batch.row_offsets as isize);
        let table = [*table, *table.add(1)];
        assert_eq!(table[..], step.sequence_blocks(sequence).unwrap()[..]);
        assert_eq!([*batch.slots, *batch.slots.add(1)], step.slots());
    }
    step.write(0, &[0.0_f32; 2 * ROW], &[0.0_f32; 2 * ROW]).unwrap();
    step.end().unwrap();
}

#[test]
fn work_can_run_in_the_call() {
    let inline = HostOptions { inline_calls: true, ..Default::default() };
    let device = Device::open_host(&inline).unwrap();
    let mut cache = Cache::create(&device, &options(4)).unwrap();
    let sequence = new_sequence(&mut cache);
    grow(&mut cache, sequence, 3, 1.0);
    assert_eq!(cache.sequence_info(sequence).unwrap().length_tokens, 3);
}
