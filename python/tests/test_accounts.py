"""Accounts of salts, figures and events of a prefix cache, and retentions of pools."""

import pickle
import random

import pytest
from test_prefix import serve

import kvarena

BLOCK = 4


@pytest.fixture
def cache(make_cache):
    return make_cache(prefix_cache=True, prefix_accounts=2, prefix_ghost_blocks=1024)


def serve_and_end(cache, tokens, salt):
    serve(cache, list(tokens), salt=salt).destroy()


def test_others_do_not_take_what_a_floor_keeps(cache):
    cache.set_salt_limits(1, floor_blocks=2)
    serve_and_end(cache, range(17), 1)  # four blocks
    for first in range(100, 600, 100):
        serve_and_end(cache, range(first, first + 50), 2)
    assert cache.match(list(range(17)), salt=1).blocks == 2
    assert cache.salt_info(1) == kvarena.SaltInfo(
        registered=2, kept=2, sequences=0, floor_blocks=2, cap_blocks=0
    )
    (holder,) = cache.holders()
    assert (holder.owner, holder.purpose, holder.references) == (1, "salt floor", 2)
    cache.check()


def test_a_salt_does_not_pass_its_cap(cache):
    cache.set_salt_limits(1, cap_blocks=2)
    for first in range(0, 300, 100):
        serve_and_end(cache, range(first, first + 5), 1)
    assert cache.salt_info(1).registered == 2
    gone = cache.match(list(range(5)), salt=1)
    assert (gone.blocks, gone.removal) == (0, "over_cap")
    assert cache.prefix_stats().removals_by["over_cap"] == 1


def test_explanations_say_from_whom_eviction_would_take(cache):
    cache.set_salt_limits(7)
    cache.set_salt_limits(8)
    for salt, tokens in ((7, 9), (8, 13), (9, 5)):
        serve_and_end(cache, range(tokens), salt)
    why = cache.explain(1)
    assert why.evictable_salts == (kvarena.SaltShare(8, 3), kvarena.SaltShare(7, 2))
    assert (why.evictable, why.evictable_of_others) == (6, 1)


def test_accounts_end_and_wrong_limits_are_refused(cache, make_cache):
    cache.set_salt_limits(1)
    cache.set_salt_limits(2)
    with pytest.raises(kvarena.Exhausted, match="account"):
        cache.set_salt_limits(3)
    for wrong in ({"floor_blocks": 17}, {"floor_blocks": 3, "cap_blocks": 2}, {"cap_blocks": -1}):
        with pytest.raises(kvarena.InvalidArgument, match="_blocks"):
            cache.set_salt_limits(1, **wrong)
    serve_and_end(cache, range(5), 1)
    with pytest.raises(kvarena.FailedPrecondition):
        cache.close_salt(1)
    cache.forget(salt=1)
    cache.close_salt(1)
    with pytest.raises(kvarena.NotFound):
        cache.salt_info(1)
    with pytest.raises(kvarena.FailedPrecondition) as refused:
        make_cache(prefix_cache=True).set_salt_limits(1)
    assert refused.value.option == "max_accounts"
    for wrong in ({"prefix_accounts": -1}, {"prefix_ghost_blocks": 3}):
        with pytest.raises(kvarena.InvalidArgument):
            make_cache(prefix_cache=True, **wrong)


def test_the_cache_tells_how_it_is_used(cache):
    serve_and_end(cache, range(9), 1)  # registrations 1 and 2
    serve_and_end(cache, range(100, 105), 1)  # 3
    serve_and_end(cache, range(9), 1)  # gaps 3 - 1 and 3 - 2
    use = cache.prefix_use()
    assert use.reuse_gap == kvarena.PrefixHistogram((1, 1) + (0,) * 15, 3)
    assert (use.ghost_references, use.ghost_sampled_ppm, len(use.ghosts)) == (5, 1_000_000, 16)
    assert kvarena.Ghost("tail_first", 2, 400_000) in use.ghosts
    assert {(g.policy, g.half_pools) for g in use.ghosts} == {
        (policy, size)
        for policy in ("tail_first", "head_first", "fifo", "lfu")
        for size in (1, 2, 4, 8)
    }
    assert pickle.loads(pickle.dumps(use)) == use
    assert cache.prefix_snapshot() == (cache.prefix_stats(), use)
    cache.forget()
    assert sum(cache.prefix_use().lifetime.counts) == 3
    assert cache.prefix_snapshot()[0].registered == 3
    cache.publish()
    assert cache.prefix_snapshot()[0].registered == 0


class Mirror:
    """An index that is rebuilt from events alone."""

    def __init__(self):
        self.blocks = {}
        self.number = 0
        self.kinds = []

    def hear(self, event):
        self.number += 1
        assert event.number == self.number
        self.kinds.append(event.kind)
        if event.kind == "stored":
            assert event.block not in self.blocks and event.removal is None
            content = (event.parent, event.salt, event.tokens, event.extra_keys)
            self.blocks[event.block] = content
        elif event.kind == "removed":
            assert event.removal in ("evicted", "parent_removed", "forgotten", "over_cap")
            del self.blocks[event.block]
        else:
            self.blocks.clear()

    def find(self, tokens, salt, extra_keys):
        """The blocks of the longest stored prefix. One token is left to compute."""
        found = []
        for first in range(0, (len(tokens) - 1) // BLOCK * BLOCK, BLOCK):
            keys = tuple((key, at - first) for key, at in extra_keys if first <= at < first + BLOCK)
            wanted = (found[-1] if found else -1, salt, tuple(tokens[first : first + BLOCK]), keys)
            block = next((b for b, content in self.blocks.items() if content == wanted), None)
            if block is None:
                break
            found.append(block)
        return found


def test_an_index_rebuilt_from_events_finds_what_the_cache_finds(make_cache):
    mirror = Mirror()
    cache = make_cache(
        prefix_cache=True, prefix_extra_keys=1, prefix_accounts=1, prefix_events=mirror.hear
    )
    cache.set_salt_limits(1, floor_blocks=2, cap_blocks=5)
    numbers = random.Random(7)
    for _ in range(300):
        values = [numbers.randrange(2) for _ in range(6)]
        tokens = [values[i // BLOCK] for i in range(numbers.randrange(1, 6 * BLOCK))]
        asked = {
            "salt": numbers.randrange(2),
            "extra_keys": numbers.choice([[], [], [(1, numbers.randrange(9))]]),
        }
        expected = mirror.find(tokens, **asked)
        assert cache.match(tokens, **asked).blocks == len(expected)
        sequence = serve(cache, tokens, **asked)
        assert sequence.blocks[: len(expected)] == expected
        sequence.destroy()
        if numbers.randrange(40) == 0:
            cache.forget()
        if numbers.randrange(40) == 0:
            cache.forget(salt=0)
        assert len(mirror.blocks) == cache.prefix_stats().published
    assert mirror.kinds.count("removed") > 50
    assert mirror.kinds.count("cleared") > 1


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_function_that_fails_changes_nothing(make_cache):
    def fail(event):
        raise RuntimeError(event.kind)

    cache = make_cache(prefix_cache=True, prefix_events=fail)
    serve_and_end(cache, range(9), 0)
    assert cache.match(list(range(9))).blocks == 2
    with pytest.raises(TypeError, match="prefix_events"):
        make_cache(prefix_events=7)


def test_pools_keep_what_is_worth_most():
    pool = kvarena.Pool(3, eviction="priority")
    holder = pool.open_holder()
    taken = pool.allocate(holder, 3)
    handles = list(zip(taken.blocks, taken.generations, strict=True))
    for block, generation in handles:
        pool.set_content(block, generation, "published")
    pool.set_retention(*handles[0], priority=90, expires_at=50)
    pool.set_retention(*handles[1], priority=80)
    with pytest.raises(kvarena.InvalidArgument, match="priority"):
        pool.set_retention(*handles[1], priority=101)
    assert (pool.block(0).priority, pool.block(0).expires_at) == (90, 50)
    assert (pool.block(2).priority, pool.block(2).expires_at) == (35, 0)
    pool.free(holder, taken.blocks, taken.generations)
    assert pool.allocate(holder).blocks == [2]
    pool.advance_clock(50)
    assert pool.allocate(holder).blocks == [0]
    with pytest.raises(kvarena.Unsupported):
        kvarena.Pool(3).advance_clock(1)
    with pytest.raises(ValueError, match="eviction"):
        kvarena.Pool(3, eviction="oldest")
