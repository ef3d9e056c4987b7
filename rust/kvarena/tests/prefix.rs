//! Sequences that begin with the cached blocks of others.

mod common;

use common::{host, options, ROW};
use kvarena::{
    Cache, CacheOptions, Demand, Eviction, ExtraKey, PrefixRemoval, PrefixStop, Prompt,
    RecordedStep, Sequence, SequenceOptions, Urgency,
};

fn prefix_cache(blocks: i64) -> Cache {
    let options = CacheOptions {
        prefix_cache: true,
        prefix_extra_keys: 1,
        eviction: Eviction::Priority,
        ..options(blocks)
    };
    let cache = Cache::create(&host(), &options).unwrap();
    assert_eq!(cache.options().unwrap().eviction, Eviction::Priority);
    cache
}

fn tokens(count: i32) -> Vec<i32> {
    (100..100 + count).collect()
}

/// A step that tells the tokens behind those that the sequence has.
fn compute(cache: &mut Cache, sequence: Sequence, tokens: &[i32]) {
    let first = cache.sequence_info(sequence).unwrap().length_tokens as usize;
    let rest = &tokens[first..];
    let mut step = cache.begin_step().unwrap();
    step.append_tokens(&[Demand::new(sequence, rest.len() as i32)], rest).unwrap();
    let kv = vec![0.5_f32; rest.len() * ROW];
    step.write(0, &kv, &kv).unwrap();
    step.end().unwrap();
}

fn begin(cache: &mut Cache, prompt: &Prompt<'_>) -> Sequence {
    cache.create_sequence_with(prompt, &SequenceOptions::default()).unwrap()
}

#[test]
fn a_second_sequence_begins_with_the_blocks_of_the_first() {
    let mut cache = prefix_cache(16);
    let list = tokens(40);
    let keys = [ExtraKey { key: 7, first_token: 0 }];
    let prompt = Prompt { tokens: &list, salt: 3, extra_keys: &keys };
    let first = begin(&mut cache, &prompt);
    assert_eq!(cache.prefix_of(first).unwrap().stop, PrefixStop::NeverSeen);
    compute(&mut cache, first, &list);
    let second = begin(&mut cache, &prompt);
    let found = cache.prefix_of(second).unwrap();
    assert_eq!((found.tokens, found.blocks, found.pending_block), (32, 2, -1));
    assert_eq!(found.stop, PrefixStop::LessThanBlock);
    let blocks = cache.sequence_blocks(second).unwrap();
    assert_eq!(blocks, cache.sequence_blocks(first).unwrap()[..2]);

    let others = Prompt { salt: 4, ..prompt };
    assert_eq!(cache.match_prefix(&others).unwrap().stop, PrefixStop::OtherSalt);
    let others = Prompt { extra_keys: &[], ..prompt };
    assert_eq!(cache.match_prefix(&others).unwrap().stop, PrefixStop::OtherExtraKey);
    assert_eq!(cache.match_prefix(&prompt).unwrap().tokens, 32);
    assert_eq!(PrefixStop::OtherSalt.to_string(), "other_salt");
    assert_eq!(PrefixRemoval::Lost.to_string(), "lost");

    let stats = cache.prefix_stats().unwrap();
    assert_eq!((stats.queries, stats.hits, stats.hit_tokens), (2, 1, 32));
    assert_eq!(stats.stops(PrefixStop::NeverSeen), 1);
    assert_eq!(stats.stops(PrefixStop::Unknown(99)), 0);
    assert_eq!(stats.published, 2);
    cache.verify_accounts().unwrap();
}

#[test]
fn what_is_told_late_is_found_and_what_is_forgotten_is_not() {
    let mut cache = prefix_cache(16);
    let list = tokens(40);
    let prompt = Prompt { tokens: &list, ..Default::default() };
    let first = cache.create_sequence(&SequenceOptions::default()).unwrap();
    let mut step = cache.begin_step().unwrap();
    let demand = [Demand::new(first, 40)];
    assert!(step.append_tokens(&demand, &list[..39]).is_err());
    let shape = RecordedStep { num_rows: 1, ..Default::default() };
    assert!(step.append_told(Some(&shape), &demand, &list, Urgency::Growth).is_err());
    step.append(&demand).unwrap();
    assert!(step.register_tokens(first, &list).is_err());
    step.end().unwrap();
    cache.register_tokens(first, &list).unwrap();
    assert_eq!(cache.match_prefix(&prompt).unwrap().tokens, 32);

    let empty = cache.create_sequence(&SequenceOptions::default()).unwrap();
    assert_eq!(cache.adopt(empty, &list).unwrap().tokens, 32);
    assert!(cache.adopt(empty, &list).is_err());
    assert_eq!(cache.set_retention(empty, 0, 17, 90, 0).unwrap(), 2);
    cache.advance_clock(5).unwrap();
    assert!(cache.advance_clock(4).is_err());
    cache.forget_prefix(empty).unwrap();
    let gone = cache.match_prefix(&prompt).unwrap();
    assert_eq!((gone.stop, gone.removal), (PrefixStop::Evicted, PrefixRemoval::Forgotten));
    assert_eq!((gone.removal_by, gone.removal_time), (0, 0));
    let stats = cache.prefix_stats().unwrap();
    assert_eq!(stats.removals_by(PrefixRemoval::Forgotten), 1);
    cache.forget_salt(0).unwrap();
    cache.forget_prefixes().unwrap();
    assert_eq!(cache.prefix_stats().unwrap().registered, 0);
}

#[test]
fn imports_have_a_tenant() {
    let mut cache = prefix_cache(16);
    let list = tokens(40);
    let keys = [ExtraKey { key: 7, first_token: 0 }];
    let prompt = Prompt { tokens: &list, salt: 3, extra_keys: &keys };
    let options = SequenceOptions::default();
    assert!(cache.import_sequence_with(40, &prompt, &options, Urgency::Default).is_err());
    let its = Prompt { tokens: &[], ..prompt };
    let import = cache.import_sequence_with(40, &its, &options, Urgency::Default).unwrap();
    cache.publish_import(import).unwrap();
    cache.register_tokens(import, &list).unwrap();
    assert_eq!(cache.match_prefix(&Prompt { salt: 0, ..prompt }).unwrap().tokens, 0);
    assert_eq!(cache.match_prefix(&Prompt { extra_keys: &[], ..prompt }).unwrap().tokens, 0);
    assert_eq!(cache.match_prefix(&prompt).unwrap().tokens, 32);
}

#[test]
fn an_aborted_step_publishes_nothing() {
    let mut cache = prefix_cache(16);
    let list = tokens(32);
    let prompt = Prompt { tokens: &list, ..Default::default() };
    let sequence = begin(&mut cache, &prompt);
    let mut step = cache.begin_step().unwrap();
    step.append_tokens(&[Demand::new(sequence, 32)], &list).unwrap();
    assert_eq!(step.match_prefix(&prompt).unwrap().stop, PrefixStop::NotYetPublished);
    step.abort().unwrap();
    assert_eq!(cache.prefix_stats().unwrap().removals_by(PrefixRemoval::Aborted), 2);
    assert_eq!(cache.match_prefix(&prompt).unwrap().tokens, 0);
}

#[test]
fn a_sequence_begins_with_a_part_of_a_block() {
    let parts = CacheOptions { prefix_cache: true, prefix_share_parts: true, ..options(16) };
    let mut cache = Cache::create(&host(), &parts).unwrap();
    assert!(cache.options().unwrap().prefix_share_parts);
    let list = tokens(40);
    let first = begin(&mut cache, &Prompt { tokens: &list, ..Default::default() });
    compute(&mut cache, first, &list);
    let mut branch = list.clone();
    branch[20..].fill(7);
    let prompt = Prompt { tokens: &branch, ..Default::default() };
    let second = begin(&mut cache, &prompt);
    let found = cache.prefix_of(second).unwrap();
    assert_eq!((found.tokens, found.blocks, found.part_tokens), (20, 1, 4));
    compute(&mut cache, second, &branch);
    assert_eq!(cache.match_prefix(&prompt).unwrap().blocks, 2);
}

#[test]
fn without_a_prefix_cache_nothing_is_found() {
    let mut cache = common::cache(8);
    let list = tokens(40);
    let prompt = Prompt { tokens: &list, ..Default::default() };
    let first = begin(&mut cache, &prompt);
    compute(&mut cache, first, &list);
    let second = begin(&mut cache, &prompt);
    assert_eq!(cache.sequence_info(second).unwrap().length_tokens, 0);
    assert!(cache.match_prefix(&prompt).is_err());
    assert!(cache.prefix_of(second).is_err());
}
