"""Sequences that begin with the blocks of others."""

from array import array

import pytest
from provider import Array

import kvarena

PROMPT = list(range(100, 118))  # four blocks of four, and two tokens


@pytest.fixture
def cache(make_cache):
    return make_cache(prefix_cache=True, prefix_extra_keys=1, eviction="priority")


def compute(cache, sequence, tokens):
    """A step that tells the tokens and writes K and V, which are the tokens' numbers."""
    key = Array([len(tokens), 2, 16], [float(t) for t in tokens for _ in range(32)])
    with cache.step([(sequence, len(tokens))], tokens=tokens) as step:
        for layer in range(2):
            step.write(layer, key, key)
    cache.synchronize()


def serve(cache, tokens, **named):
    sequence = cache.create_sequence(tokens=tokens, **named)
    rest = tokens[sequence.length :]
    compute(cache, sequence, rest)
    return sequence


def test_a_second_sequence_begins_with_the_blocks_of_the_first(cache):
    first = serve(cache, PROMPT)
    assert first.prefix == kvarena.Prefix(0, 0, "never_seen", None, 0, -1, 0, 0, 0, 0)
    second = cache.create_sequence(tokens=PROMPT)
    assert (second.prefix.tokens, second.prefix.blocks) == (16, 4)
    assert (second.length, second.prefix.stop) == (16, "less_than_a_block")
    assert second.blocks == first.blocks[:4]
    capped = cache.create_sequence(tokens=PROMPT[:16])
    assert (capped.prefix.tokens, capped.prefix.stop) == (12, "capped")
    figures = cache.prefix_stats()
    assert (figures.queries, figures.hits, figures.hit_tokens) == (3, 2, 28)
    assert figures.stops == {
        "capped": 1,
        "less_than_a_block": 1,
        "never_seen": 1,
        "evicted": 0,
        "other_salt": 0,
        "other_extra_key": 0,
        "not_yet_published": 0,
        "other_group": 0,
    }
    assert figures.published == figures.registered == 4
    cache.check()


def test_a_preempted_sequence_begins_where_it_was(cache):
    sequence = serve(cache, PROMPT)
    for token in (5, 6):
        compute(cache, sequence, [token])
    sequence.destroy()
    again = cache.create_sequence(tokens=[*PROMPT, 5, 6, 7])
    assert again.length == 20


def test_nothing_is_found_of_another_tenant_or_adapter(cache):
    serve(cache, PROMPT, salt=1, extra_keys=[(7, 0)])
    assert cache.match(PROMPT, salt=1, extra_keys=[(7, 0)]).tokens == 16
    assert cache.match(PROMPT, salt=2, extra_keys=[(7, 0)]).stop == "other_salt"
    assert cache.match(PROMPT, salt=1, extra_keys=[(8, 0)]).stop == "other_extra_key"
    with pytest.raises(kvarena.InvalidArgument, match="extra_keys"):
        cache.match(PROMPT, extra_keys=[(7, 0), (8, 1)])


def test_a_step_that_is_aborted_publishes_nothing(cache):
    sequence = cache.create_sequence(tokens=PROMPT)
    with pytest.raises(RuntimeError), cache.step([(sequence, 8)], tokens=PROMPT[:8]):
        assert cache.match(PROMPT).stop == "not_yet_published"
        raise RuntimeError
    assert cache.match(PROMPT).tokens == 0
    assert cache.prefix_stats().removals_by["aborted"] == 2


def test_tokens_can_be_told_late(cache):
    imported = cache.import_sequence(16)
    imported.publish_import()
    imported.register(PROMPT[:16])
    assert cache.match(PROMPT).tokens == 16
    empty = cache.create_sequence()
    assert empty.adopt(PROMPT).tokens == 16
    assert empty.length == 16


def test_imports_have_a_tenant(cache):
    imported = cache.import_sequence(16, salt=3, extra_keys=[(7, 0)])
    imported.publish_import()
    imported.register(PROMPT[:16])
    assert cache.match(PROMPT).tokens == 0
    assert cache.match(PROMPT, salt=3).tokens == 0
    assert cache.match(PROMPT, salt=3, extra_keys=[(7, 0)]).tokens == 16
    with pytest.raises(kvarena.InvalidArgument, match="extra_keys"):
        cache.import_sequence(16, extra_keys=[(7, 0), (8, 1)])


def test_blocks_stay_as_long_as_they_are_worth(cache):
    kept = serve(cache, PROMPT)
    assert kept.set_retention(0, 8, priority=100) == 2
    assert kept.set_retention(8, 10, priority=0, expires_at=50) == 2
    cache.advance_clock(20)
    with pytest.raises(kvarena.InvalidArgument, match="clock"):
        cache.advance_clock(19)
    kept.destroy()
    taker = serve(cache, list(range(200, 256)))  # 14 of the 16 blocks
    gone = cache.match(PROMPT)
    assert (gone.tokens, gone.stop, gone.removal) == (8, "evicted", "evicted")
    assert (gone.removal_by, gone.removal_time) == (taker.id, 20)


def test_who_took_a_block_is_told_to_its_own_tenant_alone(cache):
    serve(cache, PROMPT, salt=5).destroy()
    serve(cache, list(range(200, 264)), salt=6)  # all blocks
    gone = cache.match(PROMPT, salt=5)
    assert (gone.tokens, gone.stop, gone.removal_by) == (0, "evicted", 0)


def test_forget(cache):
    first, second = serve(cache, PROMPT, salt=1), serve(cache, PROMPT, salt=2)
    first.forget()
    assert cache.match(PROMPT, salt=1).removal == "forgotten"
    cache.forget(salt=1)
    assert cache.match(PROMPT, salt=2).tokens == 16
    cache.forget(salt=2)
    assert cache.match(PROMPT, salt=2).tokens == 0
    compute(cache, second, [1, 2])
    cache.forget()
    assert cache.prefix_stats().registered == 0


@pytest.mark.parametrize(
    "tokens",
    [
        tuple(PROMPT),
        range(100, 118),
        array("i", PROMPT),
        Array([18], PROMPT, dtype="int32"),
        Array([18], PROMPT, dtype="int64"),
        Array([18], [t for p in PROMPT for t in (p, 0)][:-1], dtype="int32", strides=[2]),
    ],
)
def test_tokens_come_in_many_forms(cache, tokens):
    serve(cache, PROMPT)
    assert cache.match(tokens).tokens == 16


@pytest.mark.parametrize(
    ("tokens", "error", "text"),
    [
        ([1, 2.5], TypeError, "tokens: 2.5"),
        ([1, 2**31], ValueError, "tokens: 2147483648"),
        ([-2], ValueError, "tokens: -2"),
        ("text", TypeError, "tokens: 'text'"),
        (7, TypeError, "tokens: 7"),
        (Array([2, 2], dtype="int32"), ValueError, "2 dimensions"),
        (Array([2], dtype="float32"), TypeError, "tokens"),
    ],
)
def test_other_tokens_are_refused(cache, tokens, error, text):
    with pytest.raises(error, match=text):
        cache.create_sequence(tokens=tokens)
    with pytest.raises(error, match=text):
        cache.match(tokens)
    assert cache.stats().sequences == 0


@pytest.mark.parametrize("keys", [[7], [(7,)], [("a", 0)], [(1, "b")], [(-1, 0)]])
def test_other_extra_keys_are_refused(cache, keys):
    with pytest.raises(TypeError, match="extra_keys"):
        cache.create_sequence(tokens=PROMPT, extra_keys=keys)


def test_a_step_has_as_many_tokens_as_its_demands(cache):
    sequence = cache.create_sequence()
    with cache.step() as step:
        for tokens in ([1], [1, 2, 3]):
            with pytest.raises(kvarena.InvalidArgument, match="span"):
                step.append([(sequence, 2)], tokens=tokens)
        step.append([(sequence, 2)], tokens=[-1, -1])  # not told
    assert cache.prefix_stats().registered == 0


def test_without_a_prefix_cache_tokens_change_nothing(make_cache):
    cache = make_cache()
    sequence = serve(cache, PROMPT)
    assert sequence.length == 18
    assert cache.prefix_stats().queries == 0
    with pytest.raises(kvarena.FailedPrecondition):
        cache.match(PROMPT)
    assert cache.options.prefix_cache == 0
    with pytest.raises(ValueError, match='eviction: "oldest"'):
        make_cache(eviction="oldest")


def test_a_sequence_begins_with_a_part_of_a_block(make_cache):
    cache = make_cache(prefix_cache=True, prefix_share_parts=True)
    assert cache.options.prefix_share_parts == 1
    first = serve(cache, PROMPT)
    branch = PROMPT[:10] + [1, 2, 3]
    second = cache.create_sequence(tokens=branch)
    found = second.prefix
    assert (found.tokens, found.blocks, found.part_tokens) == (10, 2, 2)
    assert second.blocks == first.blocks[:3]
    compute(cache, second, branch[10:])
    assert second.blocks[2] != first.blocks[2]
    assert cache.match(PROMPT).tokens == 16
    cache.check()
