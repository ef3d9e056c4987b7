//! Pools and kernels: engines with block tables of their own.

mod common;

use common::host;
use kvarena::{
    describe_kernels, layout_plane, plan_layout, AttendArgs, BlockContent, BlockState,
    CacheOptions, Dtype, Error, HolderDemand, HolderOptions, Kernels, KernelsOptions, OperationLog,
    PlaneKind, Pool, PoolOptions, Question, Tables, Urgency, WriteArgs,
};
use std::ptr;
use std::sync::{Arc, Mutex};

fn pool(num_blocks: i64) -> Pool {
    Pool::create(&PoolOptions { num_blocks, ..Default::default() }).unwrap()
}

#[test]
fn blocks_are_taken_shared_and_given_back() {
    let mut pool = pool(8);
    let options = HolderOptions {
        number: 5,
        owner: 9,
        purpose: Some("beam".to_string()),
        since_ns: 3,
        deadline_ns: 4,
    };
    let first = pool.open_holder(&options).unwrap();
    let second = pool.open_holder(&HolderOptions::default()).unwrap();
    let (mut blocks, mut generations) = ([-1; 3], [9; 3]);
    let evicted = pool.allocate(first, Urgency::Default, &mut blocks, &mut generations).unwrap();
    assert_eq!((evicted, blocks, generations), (0, [0, 1, 2], [0; 3]));
    pool.retain(second, &blocks[..2], &generations[..2]).unwrap();
    let report = pool.holder(first).unwrap();
    assert_eq!((report.number, report.owner, report.references), (5, 9, 3));
    assert_eq!((report.purpose.as_str(), report.since_ns, report.deadline_ns), ("beam", 3, 4));
    assert_eq!(pool.holders().unwrap()[0], report);
    assert_eq!(pool.block(0).unwrap().reference_count, 2);
    assert!(pool.close_holder(first).is_err());
    pool.free(first, &blocks, &generations, None).unwrap();
    pool.close_holder(first).unwrap();
    assert!(matches!(pool.holder(first), Err(Error::NotFound(_))));

    // A ticket fences what is released against it.
    let ticket = pool.open_ticket().unwrap();
    assert!(pool.is_open(ticket).unwrap());
    pool.free(second, &blocks[..2], &generations[..2], Some(ticket)).unwrap();
    assert_eq!(pool.block(0).unwrap().state, BlockState::Fenced);
    let available = pool.available(Some(ticket)).unwrap();
    assert_eq!((available.now, available.after), (6, 8));
    pool.retire(ticket).unwrap();
    assert!(!pool.is_open(ticket).unwrap());
    assert_eq!(pool.stats().unwrap().free_blocks, 8);
    let stale = pool.retain(second, &blocks, &[7; 3]).unwrap_err();
    assert!(matches!(stale, Error::StaleHandle(_)), "{stale:?}");
    pool.verify_accounts().unwrap();
}

#[test]
fn published_blocks_are_kept_until_others_need_them() {
    let mut pool = pool(2);
    let holder = pool.open_holder(&HolderOptions::default()).unwrap();
    let (mut blocks, mut generations) = ([0; 2], [0; 2]);
    pool.allocate(holder, Urgency::Growth, &mut blocks, &mut generations).unwrap();
    for content in [BlockContent::BeingWritten, BlockContent::Published] {
        pool.set_content(blocks[0], generations[0], content).unwrap();
    }
    pool.free(holder, &blocks, &generations, None).unwrap();
    let info = pool.block(blocks[0]).unwrap();
    assert_eq!((info.state, info.content), (BlockState::Evictable, BlockContent::Published));
    let evicted = pool.allocate(holder, Urgency::Growth, &mut blocks, &mut generations).unwrap();
    assert_eq!(evicted, 1);
    pool.free(holder, &blocks, &generations, None).unwrap();
    assert!(pool.quarantine(1).unwrap());
    assert_eq!(pool.stats().unwrap().offline, 1);
    pool.restore(1).unwrap();
    assert!(matches!(pool.restore(1), Err(Error::FailedPrecondition(_))));
}

#[test]
fn a_call_for_many_takes_all_or_nothing() {
    let mut pool =
        Pool::create(&PoolOptions { num_blocks: 6, watermark_blocks: 1, ..Default::default() })
            .unwrap();
    let holders = [(); 2].map(|()| pool.open_holder(&HolderOptions::default()).unwrap());
    let demands = |a, b| {
        [
            HolderDemand::new(holders[0], a, Urgency::Default),
            HolderDemand::new(holders[1], b, Urgency::Default),
        ]
    };
    let (mut blocks, mut generations) = ([-1; 6], [0; 6]);
    let error = pool
        .allocate_each(&demands(2, 4), Urgency::Admission, &mut blocks, &mut generations)
        .unwrap_err();
    match &error {
        Error::Exhausted(e) => {
            assert_eq!((e.requested, e.usable, e.missing), (6, 5, 1));
            assert_eq!(e.blocks.as_ref().unwrap().watermark, 1);
        }
        other => panic!("{other:?}"),
    }
    assert!(pool.explain_text(Question::Refused(&error)).unwrap().contains("6 requested"));
    assert!(pool.explain_json(Question::Refused(&error)).unwrap().contains("\"requested\""));
    assert_eq!(pool.stats().unwrap().free_blocks, 6);
    pool.allocate_each(&demands(1, 2), Urgency::Growth, &mut blocks[..3], &mut generations[..3])
        .unwrap();
    assert_eq!(pool.holder(holders[1]).unwrap().references, 2);
    pool.reserve(holders[0], 2, Urgency::Admission).unwrap();
    assert!(!pool.can_allocate(2, Urgency::Growth).unwrap());
    let why = pool.explain(Question::Blocks(2, Urgency::Growth)).unwrap();
    assert_eq!((why.usable, why.blocks.unwrap().reserved_blocks), (1, 2));
    assert_eq!(why.returning[0], None);
    // Slices of different lengths.
    let uneven =
        pool.allocate(holders[0], Urgency::Growth, &mut blocks[..2], &mut generations[..1]);
    assert!(matches!(uneven, Err(Error::InvalidArgument(_))));
}

#[test]
fn a_pool_logs_its_operations() {
    let lines = Arc::new(Mutex::new(Vec::new()));
    let to = lines.clone();
    let log: OperationLog = Box::new(move |o| to.lock().unwrap().push((o.kind, o.count)));
    let options = PoolOptions { num_blocks: 2, ..Default::default() };
    let mut pool = Pool::create_with(&options, Some("logged"), Some(log)).unwrap();
    pool.open_holder(&HolderOptions::default()).unwrap();
    assert_eq!(lines.lock().unwrap().len(), 1);
    drop(pool);
    assert_eq!(Arc::strong_count(&lines), 1);
}

/// A pool of one layer in memory of the test's, with tables of its own.
#[test]
fn kernels_read_what_they_wrote() {
    const DIM: usize = 8;
    let layout = CacheOptions {
        num_layers: 1,
        num_kv_heads: 1,
        head_dim_k: DIM as i32,
        dtype: Dtype::F32,
        block_size_tokens: 4,
        num_blocks: 6,
        ..Default::default()
    };
    let sizes = plan_layout(&layout, 0).unwrap();
    assert_eq!((sizes.num_blocks, sizes.bytes_per_token), (6, 2 * 4 * DIM as i64));
    let mut memory = vec![f32::NAN; sizes.pool_bytes as usize / 4];
    let base = memory.as_mut_ptr().cast();
    let key = layout_plane(&layout, base, 6, 0, PlaneKind::Key).unwrap();
    let value = layout_plane(&layout, base, 6, 0, PlaneKind::Value).unwrap();
    assert!(layout_plane(&layout, base, 6, 1, PlaneKind::Key).is_err());

    let device = host();
    let shape = KernelsOptions {
        num_kv_heads: 1,
        head_dim_k: DIM as i32,
        dtype: Dtype::F32,
        block_size_tokens: 4,
        num_q_heads: 1,
        max_rows: 2,
        max_q_tokens: 8,
        num_blocks: 6,
        num_threads: 1,
        ..Default::default()
    };
    let bad = Kernels::create(&device, &KernelsOptions { num_q_heads: 0, ..shape.clone() });
    let error = bad.map(|_| ()).unwrap_err();
    assert!(describe_kernels(&error).contains("num_q_heads"), "{}", describe_kernels(&error));
    let mut kernels = Kernels::create(&device, &shape).unwrap();
    assert!(kernels.workspace_bytes().unwrap() >= 0);

    // Six tokens in blocks 5 and 2; V is the number of the token.
    let slots: Vec<i64> = vec![20, 21, 22, 23, 8, 9];
    let keys = [0.0_f32; 6 * DIM];
    let values: Vec<f32> = (0..6 * DIM).map(|i| (i / DIM) as f32).collect();
    let (q, mut out) = (vec![1.0_f32; DIM], vec![0.0_f32; DIM]);
    let (table, row_offsets, row_slots) = ([5, 2], [0_i64], [0]);
    let (lengths, q_offsets, query_tokens) = ([6], [0_i64, 1], [1]);
    let dtype = Dtype::F32.into();
    // SAFETY: the arrays live until the end, and the host works in the call.
    unsafe {
        let write = WriteArgs {
            key: keys.as_ptr().cast(),
            value: values.as_ptr().cast(),
            dtype,
            ..Default::default()
        };
        kernels.write(&key, &value, slots.as_ptr(), 6, &write, false, ptr::null_mut()).unwrap();
        let attend = AttendArgs {
            q: q.as_ptr().cast(),
            out: out.as_mut_ptr().cast(),
            q_dtype: dtype,
            out_dtype: dtype,
            ..Default::default()
        };
        let too_early = kernels.attend(&key, &value, &attend, false, ptr::null_mut());
        assert!(matches!(too_early, Err(Error::FailedPrecondition(_))));
        let tables = Tables {
            tables: table.as_ptr(),
            table_stride: 2,
            row_offsets: row_offsets.as_ptr(),
            row_slots: row_slots.as_ptr(),
            lengths: lengths.as_ptr(),
            q_offsets: q_offsets.as_ptr(),
            query_tokens: query_tokens.as_ptr(),
            total_q: 1,
            num_rows: 1,
            ..Default::default()
        };
        kernels.schedule(&tables, false, ptr::null_mut()).unwrap();
        kernels.check_tables(false, ptr::null_mut()).unwrap();
        kernels.attend(&key, &value, &attend, false, ptr::null_mut()).unwrap();
    }
    // Equal keys: the mean of the values.
    assert!(out.iter().all(|x| (x - 2.5).abs() < 1e-5), "{out:?}");
    // SAFETY: as above.
    unsafe {
        let wrong = [5, 7];
        let tables = Tables {
            tables: wrong.as_ptr(),
            table_stride: 2,
            row_offsets: row_offsets.as_ptr(),
            lengths: lengths.as_ptr(),
            q_offsets: q_offsets.as_ptr(),
            total_q: 1,
            num_rows: 1,
            ..Default::default()
        };
        let error = kernels.schedule(&tables, false, ptr::null_mut()).unwrap_err();
        assert_eq!(error.status().subject(), 7, "{error:?}");
    }
}
