//! Accounts of salts, figures and events of a prefix cache, and retentions of pools.

mod common;

use common::{host, options, ROW};
use kvarena::{
    Attached, BlockContent, Cache, CacheOptions, Demand, Eviction, ExtraKey, Pool, PoolOptions,
    PrefixEvent, PrefixEventKind, PrefixRemoval, Prompt, Question, SaltLimits, Sequence,
    SequenceOptions, Urgency,
};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

const BLOCK: usize = 16;
const POOL: i64 = 16;

fn cached_options() -> CacheOptions {
    CacheOptions {
        prefix_cache: true,
        prefix_extra_keys: 1,
        prefix_accounts: 2,
        prefix_ghost_blocks: 1024,
        ..options(POOL)
    }
}

fn tokens(first: i32, count: i32) -> Vec<i32> {
    (first..first + count).collect()
}

/// Begins a sequence, and computes what is not cached.
fn serve(cache: &mut Cache, prompt: &Prompt<'_>) -> Sequence {
    let sequence = cache.create_sequence_with(prompt, &SequenceOptions::default()).unwrap();
    let rest = &prompt.tokens[cache.prefix_of(sequence).unwrap().tokens as usize..];
    let mut step = cache.begin_step().unwrap();
    step.append_tokens(&[Demand::new(sequence, rest.len() as i32)], rest).unwrap();
    let kv = vec![0.5_f32; rest.len() * ROW];
    step.write(0, &kv, &kv).unwrap();
    step.end().unwrap();
    sequence
}

fn serve_and_end(cache: &mut Cache, salt: u64, first: i32, count: i32) {
    let list = tokens(first, count);
    let sequence = serve(cache, &Prompt { tokens: &list, salt, ..Default::default() });
    cache.destroy(&[sequence], None).unwrap();
}

fn cached_blocks(cache: &Cache, salt: u64, first: i32, count: i32) -> i64 {
    let list = tokens(first, count);
    cache.match_prefix(&Prompt { tokens: &list, salt, ..Default::default() }).unwrap().blocks
}

#[test]
fn a_floor_is_found_later_and_a_cap_is_not_passed() {
    let mut cache = Cache::create(&host(), &cached_options()).unwrap();
    let limits = SaltLimits { floor_blocks: 2, ..Default::default() };
    cache.set_salt_limits(1, &limits).unwrap();
    serve_and_end(&mut cache, 1, 0, 65); // four blocks
    assert_eq!(cache.salt_info(1).unwrap().kept, 2);
    for i in 1..6 {
        serve_and_end(&mut cache, 2, 1000 * i, 128);
    }
    assert_eq!(cached_blocks(&cache, 1, 0, 65), 2);

    cache.set_salt_limits(2, &SaltLimits { cap_blocks: 3, ..Default::default() }).unwrap();
    cache.forget_salt(2).unwrap();
    for i in 0..4 {
        serve_and_end(&mut cache, 2, 1000 * i, 20);
    }
    let info = cache.salt_info(2).unwrap();
    assert_eq!((info.registered, info.sequences, info.cap_blocks), (3, 0, 3));
    assert_eq!(cache.prefix_stats().unwrap().removals_by(PrefixRemoval::OverCap), 1);
    let why = cache.explain(Question::Blocks(1, Urgency::Growth)).unwrap();
    assert_eq!((why.evictable_salts[0].salt, why.evictable_salts[0].blocks), (2, 3));
    assert_eq!(why.evictable_of_others, 0);

    assert!(cache.set_salt_limits(3, &limits).is_err()); // there are two accounts
    assert!(cache.set_salt_limits(2, &SaltLimits { floor_blocks: 99, cap_blocks: 99 }).is_err());
    assert!(cache.close_salt(2).is_err());
    cache.forget_salt(2).unwrap();
    cache.close_salt(2).unwrap();
    assert!(cache.salt_info(2).is_err());
    cache.verify_accounts().unwrap();
}

#[test]
fn the_cache_tells_how_it_is_used() {
    let mut cache = Cache::create(&host(), &cached_options()).unwrap();
    serve_and_end(&mut cache, 1, 0, 33); // registrations 1 and 2
    serve_and_end(&mut cache, 1, 100, 17); // 3
    serve_and_end(&mut cache, 1, 0, 33); // gaps 3 - 1 and 3 - 2
    let used = cache.prefix_use().unwrap();
    assert_eq!((used.reuse_gap.total(), used.reuse_gap.sum), (2, 3));
    assert_eq!((used.ghost_references, used.ghost_sampled_ppm), (5, 1_000_000));
    let same = |g: &&kvarena::Ghost| g.policy == Eviction::TailFirst && g.half_pools == 2;
    assert_eq!(used.ghosts.iter().find(same).unwrap().hits_ppm, 400_000);
    let observer = cache.observer();
    assert_eq!(observer.prefix_use().unwrap(), used);
    assert_eq!(observer.prefix_stats().unwrap(), cache.prefix_stats().unwrap());
    cache.forget_prefixes().unwrap();
    assert_eq!(observer.prefix_stats().unwrap().registered, 3);
    cache.publish().unwrap();
    assert_eq!(observer.prefix_stats().unwrap().registered, 0);
}

/// A stored block: parent, salt, tokens, extra keys.
type Block = (Option<i32>, u64, Vec<i32>, Vec<(u64, i64)>);

/// An index that is rebuilt from events alone.
#[derive(Default)]
struct Mirror {
    blocks: HashMap<i32, Block>,
    number: u64,
    removed: usize,
    cleared: usize,
}

impl Mirror {
    fn hear(&mut self, event: &PrefixEvent<'_>) {
        self.number += 1;
        assert_eq!(event.number, self.number);
        match event.kind {
            PrefixEventKind::Stored => {
                let list = event.tokens.to_vec();
                let keys = event.extra_keys.iter().map(|k| (k.key, k.first_token)).collect();
                let block = (event.parent, event.salt, list, keys);
                assert_eq!(self.blocks.insert(event.block, block), None);
            }
            PrefixEventKind::Removed => {
                assert!(self.blocks.remove(&event.block).is_some() && event.removal.is_some());
                self.removed += 1;
            }
            _ => {
                self.blocks.clear();
                self.cleared += 1;
            }
        }
    }

    /// The blocks of the longest stored prefix. One token is left to compute.
    fn find(&self, prompt: &Prompt<'_>) -> Vec<i32> {
        let mut found: Vec<i32> = Vec::new();
        let full = prompt.tokens.chunks_exact(BLOCK).take((prompt.tokens.len() - 1) / BLOCK);
        for (index, list) in full.enumerate() {
            let begins = |k: &&ExtraKey| k.first_token as usize / BLOCK == index;
            let in_block = |k: &ExtraKey| (k.key, k.first_token % BLOCK as i64);
            let keys = prompt.extra_keys.iter().filter(begins).map(in_block).collect();
            let wanted: Block = (found.last().copied(), prompt.salt, list.to_vec(), keys);
            match self.blocks.iter().find(|(_, block)| **block == wanted) {
                Some((block, _)) => found.push(*block),
                None => break,
            }
        }
        found
    }
}

/// Numbers below `end`, from a fixed seed.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % end
    }
}

#[test]
fn an_index_rebuilt_from_events_finds_what_the_cache_finds() {
    let mirror = Arc::new(Mutex::new(Mirror::default()));
    let told = mirror.clone();
    let attached = Attached {
        prefix_events: Some(Box::new(move |event| told.lock().unwrap().hear(event))),
        ..Default::default()
    };
    let mut cache = Cache::create_with(&host(), &cached_options(), attached).unwrap();
    cache.set_salt_limits(1, &SaltLimits { floor_blocks: 2, cap_blocks: 5 }).unwrap();
    let mut random = Random(7);
    for _ in 0..400 {
        let count = 1 + random.below(5 * BLOCK as u64) as usize;
        let values: Vec<i32> = (0..5).map(|_| random.below(2) as i32).collect();
        let list: Vec<i32> = (0..count).map(|i| values[i / BLOCK]).collect();
        let key = [ExtraKey { key: 1 + random.below(2), first_token: random.below(40) as i64 }];
        let extra_keys = if random.below(4) == 0 { &key[..] } else { &[] };
        let prompt = Prompt { tokens: &list, salt: random.below(2), extra_keys };
        let expected = mirror.lock().unwrap().find(&prompt);
        assert_eq!(cache.match_prefix(&prompt).unwrap().blocks as usize, expected.len());
        let sequence = serve(&mut cache, &prompt);
        let blocks = cache.sequence_blocks(sequence).unwrap();
        assert_eq!(blocks[..expected.len()], expected[..]);
        cache.destroy(&[sequence], None).unwrap();
        if random.below(50) == 0 {
            cache.forget_prefixes().unwrap();
        }
        if random.below(50) == 0 {
            cache.forget_salt(0).unwrap();
        }
        let published = cache.prefix_stats().unwrap().published as usize;
        assert_eq!(mirror.lock().unwrap().blocks.len(), published);
    }
    let mirror = mirror.lock().unwrap();
    assert!(mirror.removed > 50 && mirror.cleared > 1 && !mirror.blocks.is_empty());
    assert_eq!(PrefixEventKind::Stored.to_string(), "stored");
}

#[test]
fn pools_keep_what_is_worth_most() {
    let options = PoolOptions { num_blocks: 3, eviction: Eviction::Priority, ..Default::default() };
    let mut pool = Pool::create(&options).unwrap();
    let holder = pool.open_holder(&Default::default()).unwrap();
    let (mut blocks, mut generations) = ([0; 3], [0; 3]);
    pool.allocate(holder, Urgency::Growth, &mut blocks, &mut generations).unwrap();
    for (&block, &generation) in blocks.iter().zip(&generations) {
        pool.set_content(block, generation, BlockContent::Published).unwrap();
    }
    pool.set_retention(blocks[0], generations[0], 90, 50).unwrap();
    pool.set_retention(blocks[1], generations[1], 80, 0).unwrap();
    assert!(pool.set_retention(blocks[1], generations[1], 101, 0).is_err());
    let info = pool.block(blocks[0]).unwrap();
    assert_eq!((info.priority, info.expires_at), (90, 50));
    pool.free(holder, &blocks, &generations, None).unwrap();
    let (mut next, mut generation) = ([0], [0]);
    pool.allocate(holder, Urgency::Growth, &mut next, &mut generation).unwrap();
    assert_eq!(next[0], blocks[2]);
    pool.advance_clock(50).unwrap();
    assert!(pool.advance_clock(49).is_err());
    pool.allocate(holder, Urgency::Growth, &mut next, &mut generation).unwrap();
    assert_eq!(next[0], blocks[0]);
}
