//! Caches with states of recurrent layers. The kernel of a layer is `state = state / 2 + token`.

use kvarena::{
    Attached, Cache, CacheOptions, Demand, Device, Dtype, GroupBlocks, GroupKind, HostOptions,
    LayerGroup, Sequence, SequenceOptions, StateMode, StatePlane, StateView, Step,
};

fn groups(state_mode: StateMode) -> Vec<LayerGroup> {
    vec![
        LayerGroup {
            layers: vec![2.into()],
            num_kv_heads: 1,
            head_dim_k: 8,
            dtype: Dtype::F32,
            ..Default::default()
        },
        LayerGroup {
            kind: GroupKind::State,
            layers: vec![0.into(), 1.into()],
            planes: vec![
                StatePlane { dtype: Dtype::F32, shape: vec![16, 16] },
                StatePlane { dtype: Dtype::Bf16, shape: vec![3] },
            ],
            state_mode,
            rollback_tokens: 2,
            ..Default::default()
        },
    ]
}

fn open(groups: &[LayerGroup]) -> kvarena::Result<Cache> {
    let device = Device::open_host(&HostOptions::default())?;
    let options = CacheOptions {
        num_blocks: 64,
        num_q_heads: 1,
        max_sequences: 4,
        max_sequence_tokens: 1024,
        num_threads: 1,
        checkpoint_every_tokens: 32,
        ..Default::default()
    };
    Cache::create_with(&device, &options, Attached { groups, ..Default::default() })
}

fn state_in(view: &StateView, slot: i32) -> *mut f32 {
    let offset = i64::from(slot) * view.slot_stride_bytes + view.offsets[0];
    // SAFETY: the slot is one of the pool's.
    unsafe { view.base.cast::<u8>().offset(offset as isize).cast() }
}

fn read(view: &StateView, slot: i32) -> f32 {
    // SAFETY: as above; nothing else uses the host's memory meanwhile.
    if slot == -1 {
        0.0
    } else {
        unsafe { *state_in(view, slot) }
    }
}

fn run_layer(step: &Step<'_>, layer: i32, first: i32, count: i32) {
    let view = step.state_view(layer).unwrap();
    let slots = step.states(view.index).unwrap();
    let (part, parts) = (view.part as usize, slots.num_parts as usize);
    let mut state = read(&view, slots.read[part]);
    let mut extra = slots.extra_offsets[0] as usize;
    for i in 0..count {
        state = state / 2.0 + (first + i) as f32;
        if slots.extra_tokens.get(extra) == Some(&i) {
            // SAFETY: as in `read`.
            unsafe { *state_in(&view, slots.extra_slots[extra * parts + part]) = state };
            extra += 1;
        }
    }
    assert_eq!(extra, slots.extra_tokens.len());
    // SAFETY: as in `read`.
    unsafe { *state_in(&view, slots.write[part]) = state };
}

fn append(cache: &mut Cache, sequence: Sequence, first: i32, count: i32) {
    let mut step = cache.begin_step().unwrap();
    step.append(&[Demand::new(sequence, count)]).unwrap();
    step.synchronize().unwrap();
    (0..2).for_each(|layer| run_layer(&step, layer, first, count));
    step.end().unwrap();
}

/// The state at the sequence's present length, by a step that is given up, beside what it must be.
fn check_state(cache: &mut Cache, sequence: Sequence, length: i32) {
    let expected = (0..length).fold(0.0, |state: f32, token| state / 2.0 + token as f32);
    let mut step = cache.begin_step().unwrap();
    step.append(&[Demand::new(sequence, 1)]).unwrap();
    step.synchronize().unwrap();
    for layer in 0..2 {
        let view = step.state_view(layer).unwrap();
        let slot = step.states(0).unwrap().read[view.part as usize];
        assert_eq!(read(&view, slot), expected);
    }
}

#[test]
fn states_go_on_where_they_were() {
    for mode in [StateMode::InPlace, StateMode::ReadWrite] {
        let mut cache = open(&groups(mode)).unwrap();
        let id = cache.create_sequence(&SequenceOptions::default()).unwrap();
        append(&mut cache, id, 0, 70);
        check_state(&mut cache, id, 70);
        assert_eq!(cache.checkpoints(id).unwrap(), [32, 64]);
        let fork = cache.fork(id, 64, &SequenceOptions::default()).unwrap();
        check_state(&mut cache, fork, 64);
        cache.truncate(id, 69, None).unwrap();
        check_state(&mut cache, id, 69);
        assert!(cache.truncate(id, 50, None).is_err());
        cache.checkpoint(id).unwrap();
        append(&mut cache, id, 69, 20);
        assert_eq!(cache.restorable_length(id, 80).unwrap(), 69);

        let state = cache.state_blocks(id, 64, 1).unwrap();
        assert!(cache.state_blocks(id, 65, 1).is_err());
        let mut tokens = cache.group_blocks(id, 0).unwrap();
        tokens.blocks.truncate(4);
        tokens.generations =
            tokens.blocks.iter().map(|b| cache.block(*b).unwrap().generation).collect();
        let parts: [GroupBlocks; 2] = [tokens, state];
        let other = cache.create_sequence_from(64, &parts, &SequenceOptions::default()).unwrap();
        check_state(&mut cache, other, 64);
        cache.destroy(&[id, fork, other], None).unwrap();
        assert_eq!(cache.parts().unwrap()[1].referenced, 0);
        cache.verify_accounts().unwrap();
        assert!(cache.state_view(2).is_err());
    }
}

#[test]
fn what_is_no_state_is_refused() {
    let with = |planes: Vec<StatePlane>| {
        let mut groups = groups(StateMode::InPlace);
        groups[1].planes = planes;
        open(&groups)
    };
    assert!(with(vec![]).is_err());
    assert!(with(vec![StatePlane { dtype: Dtype::F32, shape: vec![] }]).is_err());
    assert!(with(vec![StatePlane { dtype: Dtype::F32, shape: vec![1; 5] }]).is_err());
    assert!(with(vec![StatePlane { dtype: Dtype::F32, shape: vec![0] }]).is_err());
    assert!(with(vec![StatePlane { dtype: Dtype::F32, shape: vec![1] }; 9]).is_err());
}
