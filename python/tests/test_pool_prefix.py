"""Blocks of a pool that are found by their tokens: for engines with block tables of their own."""

import gc
import weakref

import pytest

import kvarena

BLOCK = 4
PROMPT = list(range(100, 114))  # three blocks of four, and two tokens


class Line:
    """A sequence as an engine keeps it."""

    def __init__(self, pool, tokens, **named):
        self.pool, self.tokens, self.named = pool, tokens, named
        self.holder = pool.open_holder()
        found = pool.adopt(self.holder, tokens, **named)
        self.prefix, self.position = found.prefix, found.position
        lacking = -(-len(tokens) // BLOCK) - len(found.blocks)
        taken = pool.allocate(self.holder, lacking)
        self.blocks = found.blocks + taken.blocks
        self.generations = found.generations + taken.generations

    def register(self):
        first, end = self.position.blocks, len(self.tokens) // BLOCK
        return self.pool.register(
            self.position,
            self.tokens[first * BLOCK : end * BLOCK],
            self.blocks[first:end],
            self.generations[first:end],
            extra_keys=self.named.get("extra_keys", ()),
        )

    def publish(self):
        return self.pool.publish(self.blocks, self.generations)

    def end(self):
        self.pool.free(self.holder, self.blocks[::-1], self.generations[::-1])
        self.pool.close_holder(self.holder)


@pytest.fixture
def pool():
    made = kvarena.Pool(
        8, prefix_cache=True, block_size=BLOCK, prefix_extra_keys=1, prefix_key_low=3
    )
    yield made
    made.check()
    made.close()


def test_a_second_sequence_begins_with_the_blocks_of_the_first(pool):
    first = Line(pool, PROMPT)
    assert first.prefix == kvarena.Prefix(0, 0, "never_seen", None, 0, -1, 0, 0, 0, 0)
    assert first.register() == 3
    waiting = pool.match(PROMPT)
    assert (waiting.stop, waiting.pending_block) == ("not_yet_published", first.blocks[0])
    assert first.publish() == 3
    assert pool.match(PROMPT).tokens == 12
    assert pool.match(PROMPT, salt=1).stop == "other_salt"
    assert pool.match(PROMPT, extra_keys=[(7, 0)]).stop == "other_extra_key"
    second = Line(pool, PROMPT)
    assert second.blocks[:3] == first.blocks[:3] and second.blocks[3] != first.blocks[3]
    assert (second.position.blocks, second.register()) == (3, 0)
    second.end()
    first.end()
    assert pool.stats().evictable == 3
    figures = pool.prefix_stats()
    assert (figures.queries, figures.hits, figures.hit_tokens) == (2, 1, 12)
    assert sum(pool.prefix_use().reuse_gap.counts) == 3


def test_evicted_blocks_are_not_found(pool):
    line = Line(pool, PROMPT)
    line.register()
    line.publish()
    line.end()
    large = Line(pool, list(range(24)))
    left = pool.match(PROMPT)
    assert (left.blocks, left.stop, left.removal) == (2, "evicted", "evicted")
    large.end()
    assert pool.prefix_stats().removals_by["evicted"] == 1


def test_a_block_that_is_freed_unpublished_is_not_waited_for(pool):
    line = Line(pool, PROMPT)
    line.register()
    line.end()
    assert pool.match(PROMPT).stop == "never_seen"
    assert pool.prefix_stats().registered == 0
    assert pool.stats().free == 8


def test_a_fork_copies_the_position(pool):
    parent = Line(pool, PROMPT[:8])
    parent.register()
    child, taken = parent.position.copy(), pool.allocate(parent.holder, 2)
    ends = [[1, 2, 3, 4], [5, 6, 7, 8]]
    for position, end, block in zip([parent.position, child], ends, [0, 1], strict=True):
        pool.register(position, end, taken.blocks[block : block + 1], [taken.generations[block]])
        assert position.blocks == 3
    parent.publish()
    pool.publish(taken.blocks, taken.generations)
    for end, block in zip(ends, taken.blocks, strict=True):
        found = pool.adopt(parent.holder, [*PROMPT[:8], *end, 0])
        assert found.blocks == [*parent.blocks, block]


def test_what_is_forgotten_is_registered_anew(pool):
    line = Line(pool, PROMPT, extra_keys=[(9, 5)])
    line.register()
    line.publish()
    pool.forget(line.blocks[1:2])
    assert pool.match(PROMPT, extra_keys=[(9, 5)]).blocks == 1
    with pytest.raises(kvarena.StaleHandle):
        line.register()
    line.position = pool.begin_prefix()
    assert line.register() == 2
    pool.forget_salt(0)
    assert pool.prefix_stats().registered == 0
    pool.forget_all()


def test_wrong_calls_are_refused(pool):
    line = Line(pool, PROMPT)
    with pytest.raises(kvarena.NotFound):  # a position of another pool
        other = kvarena.Pool(8, prefix_cache=True, block_size=BLOCK)
        pool.register(other.begin_prefix(), PROMPT[:4], line.blocks[:1], line.generations[:1])
    with pytest.raises(kvarena.InvalidArgument):
        pool.register(line.position, PROMPT[:5], line.blocks[:1], line.generations[:1])
    with pytest.raises(ValueError, match="generations"):
        pool.publish(line.blocks, [0])
    with pytest.raises(kvarena.FailedPrecondition):
        pool.set_content(line.blocks[0], line.generations[0], "published")
    with pytest.raises(kvarena.FailedPrecondition):
        kvarena.Pool(1).match(PROMPT)
    with pytest.raises(kvarena.Unsupported):
        kvarena.Pool(1, prefix_cache=True, prefix_duplicates="share")
    with pytest.raises(TypeError, match="prefix_events"):
        kvarena.Pool(1, prefix_cache=True, prefix_events=3)


def test_events_are_told_and_the_pool_can_be_dropped():
    seen = []
    pool = kvarena.Pool(4, prefix_cache=True, block_size=BLOCK, prefix_events=seen.append)
    line = Line(pool, PROMPT[:8], salt=6)
    line.register()
    line.publish()
    assert [(e.kind, e.block, e.salt) for e in seen] == [
        ("stored", line.blocks[0], 6),
        ("stored", line.blocks[1], 6),
    ]
    assert seen[1].tokens == tuple(PROMPT[4:8]) and seen[1].parent == line.blocks[0]
    pool.forget_all()
    assert seen[-1].kind == "cleared"

    class Listener:
        def __call__(self, event):
            pass

    listener = Listener()
    listener.pool = kvarena.Pool(4, prefix_cache=True, prefix_events=listener)
    gone = weakref.ref(listener)
    del listener
    gc.collect()
    assert gone() is None
