//! Blocks of a pool that are found by their tokens.

use kvarena::{
    BlockContent, Duplicates, Error, ExtraKey, Holder, HolderOptions, Pool, PoolOptions, Prefix,
    PrefixEventKind, PrefixPosition, PrefixRemoval, PrefixStop, Prompt, Urgency,
};
use std::sync::{Arc, Mutex};

const BLOCK: usize = 4;

fn options() -> PoolOptions {
    PoolOptions {
        num_blocks: 8,
        prefix_cache: true,
        block_size_tokens: BLOCK as i32,
        prefix_extra_keys: 1,
        prefix_key_low: 5,
        ..Default::default()
    }
}

/// A sequence as an engine keeps it.
struct Line {
    holder: Holder,
    blocks: Vec<i32>,
    generations: Vec<u32>,
    found: Prefix,
    position: PrefixPosition,
}

/// A sequence with what is cached of its prompt, and blocks for the rest.
fn begin(pool: &mut Pool, prompt: &Prompt<'_>) -> Line {
    let holder = pool.open_holder(&HolderOptions::default()).unwrap();
    let count = (prompt.tokens.len() + BLOCK - 1) / BLOCK;
    let (mut blocks, mut generations) = (vec![-1; count], vec![0; count]);
    let (found, position) = pool.adopt(holder, prompt, &mut blocks, &mut generations).unwrap();
    let have = found.blocks as usize;
    let (rest, numbers) = (&mut blocks[have..], &mut generations[have..]);
    pool.allocate(holder, Urgency::Default, rest, numbers).unwrap();
    Line { holder, blocks, generations, found, position }
}

fn register(pool: &mut Pool, line: &mut Line, prompt: &Prompt<'_>) -> usize {
    let (first, end) = (line.position.blocks(), prompt.tokens.len() / BLOCK);
    let filled = Prompt { tokens: &prompt.tokens[first * BLOCK..end * BLOCK], ..*prompt };
    let (blocks, generations) = (&line.blocks[first..end], &line.generations[first..end]);
    pool.register(&mut line.position, &filled, blocks, generations).unwrap()
}

fn end(pool: &mut Pool, mut line: Line) {
    line.blocks.reverse();
    line.generations.reverse();
    pool.free(line.holder, &line.blocks, &line.generations, None).unwrap();
    pool.close_holder(line.holder).unwrap();
}

#[test]
fn blocks_of_one_sequence_are_found_by_the_next() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let told = Arc::clone(&seen);
    let events = move |e: &kvarena::PrefixEvent<'_>| told.lock().unwrap().push((e.kind, e.salt));
    let mut pool = Pool::create_heard(&options(), None, None, Some(Box::new(events))).unwrap();
    let tokens: Vec<i32> = (100..113).collect();
    let keys = [ExtraKey { key: 7, first_token: 5 }];
    let prompt = Prompt { tokens: &tokens, salt: 3, extra_keys: &keys };
    let mut first = begin(&mut pool, &prompt);
    assert_eq!((first.found.blocks, first.found.stop), (0, PrefixStop::NeverSeen));
    assert_eq!(register(&mut pool, &mut first, &prompt), 3);
    let waiting = pool.match_prefix(&prompt, &mut [], &mut []).unwrap();
    assert_eq!(waiting.stop, PrefixStop::NotYetPublished);
    assert_eq!(pool.publish(&first.blocks, &first.generations).unwrap(), 3);
    assert_eq!(*seen.lock().unwrap(), [(PrefixEventKind::Stored, 3); 3]);

    let (mut blocks, mut generations) = ([-1; 2], [0; 2]);
    let found = pool.match_prefix(&prompt, &mut blocks, &mut generations).unwrap();
    assert_eq!((found.tokens, &blocks[..]), (12, &first.blocks[..2]));
    let other = Prompt { salt: 4, ..prompt };
    let missed = pool.match_prefix(&other, &mut [], &mut []).unwrap();
    assert_eq!(missed.stop, PrefixStop::OtherSalt);
    let plain = Prompt { extra_keys: &[], ..prompt };
    let missed = pool.match_prefix(&plain, &mut [], &mut []).unwrap();
    assert_eq!((missed.blocks, missed.stop), (1, PrefixStop::OtherExtraKey));

    let second = begin(&mut pool, &prompt);
    assert_eq!((second.found.blocks, second.position.blocks()), (3, 3));
    assert_eq!(second.blocks[..3], first.blocks[..3]);
    end(&mut pool, second);
    end(&mut pool, first);
    let large: Vec<i32> = (0..24).collect();
    let third = begin(&mut pool, &Prompt { tokens: &large, ..Default::default() });
    let left = pool.match_prefix(&prompt, &mut [], &mut []).unwrap();
    assert_eq!(
        (left.blocks, left.stop, left.removal),
        (2, PrefixStop::Evicted, PrefixRemoval::Evicted)
    );
    let stats = pool.prefix_stats().unwrap();
    assert_eq!((stats.queries, stats.hits, stats.registered), (3, 1, 2));
    assert_eq!(stats.removals_by(PrefixRemoval::Evicted), 1);
    assert_eq!(pool.prefix_use().unwrap().reuse_gap.counts.iter().sum::<u64>(), 3);
    end(&mut pool, third);
    pool.forget_salt(3).unwrap();
    pool.forget_prefixes().unwrap();
    assert_eq!(pool.prefix_stats().unwrap().registered, 0);
    pool.verify_accounts().unwrap();
}

#[test]
fn wrong_calls_are_refused() {
    let share = PoolOptions { prefix_duplicates: Duplicates::Share, ..options() };
    assert!(matches!(Pool::create(&share), Err(Error::Unsupported(_))));
    let mut pool = Pool::create(&options()).unwrap();
    let mut others = Pool::create(&options()).unwrap();
    let tokens: Vec<i32> = (0..8).collect();
    let prompt = Prompt { tokens: &tokens, ..Default::default() };
    let mut line = begin(&mut pool, &prompt);
    let mut foreign = others.begin_prefix(0).unwrap();
    let refused = pool.register(&mut foreign, &prompt, &line.blocks, &line.generations);
    assert!(matches!(refused, Err(Error::NotFound(_))), "{refused:?}");
    assert_eq!(register(&mut pool, &mut line, &prompt), 2);
    pool.forget(&line.blocks[1..]).unwrap();
    let refused = pool.register(&mut line.position, &Prompt::default(), &[], &[]);
    assert!(matches!(refused, Err(Error::StaleHandle(_))), "{refused:?}");
    assert!(pool.publish(&line.blocks, &[9, 9]).is_err());
    assert!(pool.publish(&line.blocks, &[9]).is_err());
    let published = BlockContent::Published;
    assert!(pool.set_content(line.blocks[0], line.generations[0], published).is_err());
    line.position = pool.begin_prefix(0).unwrap();
    assert_eq!(register(&mut pool, &mut line, &prompt), 1, "the first one is registered");

    let mut without = Pool::create(&PoolOptions { num_blocks: 1, ..Default::default() }).unwrap();
    assert!(matches!(without.begin_prefix(0), Err(Error::FailedPrecondition(_))));
    assert!(matches!(without.forget_prefixes(), Err(Error::FailedPrecondition(_))));
    others.verify_accounts().unwrap();
}
