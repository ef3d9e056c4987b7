"""Caches whose layers keep different data.

Keys are zero, so that a token's output is the mean of the values that it sees; the value of token i is i.
"""

import ctypes
import dataclasses
import math

import pytest
from provider import Array, described

import kvarena

HEADS, DIM, WINDOW, CHUNK, ENCODER = 2, 16, 40, 32, 20
SIZES = {"num_kv_heads": HEADS, "head_dim": DIM, "dtype": "f32"}
GROUPS = (
    kvarena.LayerGroup(layers=[0, (4, 0)], **SIZES),
    kvarena.LayerGroup(layers=[1], kind="window", limit_tokens=WINDOW, **SIZES),
    kvarena.LayerGroup(layers=[2], kind="chunk", limit_tokens=CHUNK, **SIZES),
    kvarena.LayerGroup(layers=[3], kind="cross", limit_tokens=ENCODER, **SIZES),
)


def open_cache(groups=GROUPS, **options):
    chosen = {
        "num_blocks": 40,
        "num_q_heads": HEADS,
        "max_sequences": 8,
        "max_sequence_tokens": 256,
        "num_threads": 1,
        "page_sequence_tokens": 1024,
    } | options
    return kvarena.Cache(kvarena.Device(), kvarena.CacheOptions(groups=groups, **chosen))


@pytest.fixture
def cache():
    with open_cache() as made:
        yield made


def zeros(count):
    return Array([count, HEADS, DIM])


def counted(first, count):
    row = HEADS * DIM
    return Array([count, HEADS, DIM], [first + i // row for i in range(count * row)])


def append(cache, sequence, first, count, encoder=False):
    """The output of the last token in each layer."""
    found = []
    with cache.step([(sequence, count)]) as step:
        for layer in range(5):
            if layer < 3:
                step.write(layer, zeros(count), counted(first, count))
            elif layer == 3 and encoder:
                step.write_cross(layer, sequence, zeros(ENCODER), counted(1000, ENCODER))
            out = step.attend(layer, zeros(count), out=zeros(count))
            cache.synchronize()
            found.append(out.rows()[-1][0][0])
    return found


def expected(last):
    def mean(first, end):
        return (first + end) / 2

    full = mean(0, last)
    window, chunk = mean(max(0, last + 1 - WINDOW), last), mean(last // CHUNK * CHUNK, last)
    return pytest.approx([full, window, chunk, mean(1000, 1000 + ENCODER - 1), full], rel=1e-5)


def test_an_encoder_is_written_before_it_is_read(cache):
    sequence = cache.create_sequence(cross_tokens=ENCODER)
    with (
        pytest.raises(kvarena.FailedPrecondition, match="write_cross"),
        cache.step([(sequence, 1)]) as step,
    ):
        step.attend(3, zeros(1), out=zeros(1))
    with pytest.raises(ValueError, match="key_scale"), cache.step([(sequence, 1)]) as step:
        step.write_cross(3, sequence, zeros(ENCODER), zeros(ENCODER), key_scale=Array([1]))
    assert append(cache, sequence, 0, 100, encoder=True) == expected(99)


def test_the_log_says_which_entries_are_one_call():
    heard = []
    with open_cache(log=heard.append) as cache:
        append(cache, cache.create_sequence(cross_tokens=ENCODER), 0, 40, encoder=True)
        taken = [entry for entry in heard if entry.kind == "allocate"]
        assert [entry.group for entry in taken] == list(range(len(taken)))
        assert [entry.left_in_call for entry in taken] == list(reversed(range(len(taken))))


def test_each_layer_sees_the_tokens_of_its_group(cache):
    sequence = cache.create_sequence(cross_tokens=ENCODER)
    assert append(cache, sequence, 0, 100, encoder=True) == expected(99)
    assert append(cache, sequence, 100, 1) == expected(100)
    pages, parts = cache.pages(), cache.parts()
    assert pages.num_pages == 40
    assert pages.of_groups == sum(part.pages for part in parts)
    assert [part.group for part in parts] == [0, 1, 2, 3]
    # Token 61 is the oldest that the window of token 101 reads.
    first, blocks = sequence.group_blocks(1)
    assert (first, len(blocks)) == (3, 4)
    assert sequence.group_blocks(0)[0] == 0
    assert sequence.restorable_length(101) == 101
    assert sequence.restorable_length(50) == 0
    with pytest.raises(kvarena.FailedPrecondition):
        sequence.truncate(50)
    with pytest.raises(kvarena.InvalidArgument):
        sequence.group_blocks(4)
    fork = sequence.fork()
    assert append(cache, fork, 101, 30) == expected(130)
    cache.destroy([sequence, fork])
    assert cache.pages().of_groups == 0
    cache.check()


def test_a_block_of_a_page_that_is_not_carved_is_absent(cache):
    assert cache.block(0).state == "absent"
    sequence = cache.create_sequence(cross_tokens=ENCODER)
    append(cache, sequence, 0, 5, encoder=True)
    held = sequence.group_blocks(1)[1][0]
    assert cache.block(held).state == "referenced"
    sequence.destroy()
    assert cache.block(held).state == "absent"


def test_a_sequence_from_the_blocks_of_another_goes_on_as_that_one(cache):
    sequence = cache.create_sequence(cross_tokens=ENCODER)
    append(cache, sequence, 0, 96, encoder=True)
    blocks = [sequence.group_blocks(part) for part in range(4)]
    twin = cache.create_sequence_from(96, blocks, cross_tokens=ENCODER)
    sequence.destroy()
    assert append(cache, twin, 96, 5) == expected(100)
    with pytest.raises(kvarena.InvalidArgument):
        cache.create_sequence_from(96, blocks[:2], cross_tokens=ENCODER)
    twin.destroy()
    cache.check()


def test_values_that_lie_in_keys():
    latent = kvarena.LayerGroup(
        layers=[0], num_kv_heads=1, head_dim=16, head_dim_v=8, value_in_key=True, dtype="f32"
    )
    with open_cache([latent]) as cache:
        key = Array([1, 1, 16], list(range(16)))
        with cache.step([(cache.create_sequence(), 1)]) as step:
            with pytest.raises(ValueError, match="V of this layer lies in K"):
                step.write(0, key, key)
            step.write(0, key, None)
            out = step.attend(0, zeros(1), out=Array([1, HEADS, 8]))
            cache.synchronize()
            assert out.rows() == [[[float(i) for i in range(8)]] * HEADS]


def test_what_a_step_put_on_the_device_is_one_parts(cache):
    sequence = cache.create_sequence(cross_tokens=ENCODER)
    with cache.step([(sequence, 20)]) as step:
        assert step.device_batch(1).num_rows == 1
        with pytest.raises(kvarena.InvalidArgument):
            step.device_batch(9)
        with pytest.raises(ValueError, match="a layer of a group"):
            step.attend(7, zeros(20))


def test_options_come_back_and_a_footprint_is_what_is_taken(cache):
    assert cache.options.groups == GROUPS
    assert cache.options.page_sequence_tokens == 1024
    footprint = kvarena.footprint(kvarena.Device(), cache.options)
    assert footprint.pool_bytes == 40 * cache.pages().page_bytes


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"kind": "state"}, kvarena.InvalidArgument),
        ({"planes": ["f32"]}, TypeError),
        ({"kind": "windows"}, ValueError),
        ({"layers": []}, kvarena.InvalidArgument),
        ({"layers": ["0"]}, TypeError),
        ({"layers": [(0, 1)]}, kvarena.InvalidArgument),
        ({"kind": "window", "limit_tokens": 0}, kvarena.InvalidArgument),
        ({"num_kv_heads": 3}, kvarena.InvalidArgument),
        ({"dtype": "f64"}, ValueError),
    ],
)
def test_what_is_no_group_is_refused(changes, error):
    with pytest.raises(error):
        open_cache([dataclasses.replace(GROUPS[0], **({"layers": [0]} | changes))])


def test_a_pool_of_the_engines_own_has_no_groups():
    options = kvarena.CacheOptions(groups=GROUPS, num_blocks=4, num_q_heads=HEADS)
    with pytest.raises(kvarena.Unsupported, match="groups"):
        kvarena.pool_plan(options)
    with pytest.raises(kvarena.Unsupported, match="groups"):
        kvarena.layer_view(kvarena.Device(), options, Array([1 << 16]), 0)


def test_a_prefix_is_found_in_every_group():
    groups = (GROUPS[0], dataclasses.replace(GROUPS[1], layers=[1]))
    prompt = list(range(100))
    with open_cache(groups, prefix_cache=True) as cache:

        def compute(sequence, tokens):
            numbers = Array(
                [len(tokens), HEADS, DIM], [float(t) for t in tokens for _ in range(32)]
            )
            with cache.step([(sequence, len(tokens))], tokens=tokens) as step:
                outs = []
                for layer in range(2):
                    step.write(layer, zeros(len(tokens)), numbers)
                    outs.append(step.attend(layer, zeros(len(tokens)), out=zeros(len(tokens))))
            cache.synchronize()
            return [out.rows()[-1][0][0] for out in outs]

        first = cache.create_sequence(tokens=prompt)
        compute(first, prompt)
        second = cache.create_sequence(tokens=prompt + [100])
        found = second.prefix
        assert (found.tokens, found.registered_tokens, second.length) == (96, 96, 96)
        rest = prompt[96:] + [100]
        assert compute(second, rest) == [50.0, (100 + 100 - WINDOW + 1) / 2]
        blocks = [first.group_blocks(part) for part in range(2)]
        assert cache.create_sequence_from(100, blocks).length == 100
        with pytest.raises(kvarena.InvalidArgument, match="salt"):
            cache.create_sequence_from(100, blocks, salt=7)
        cache.check()
    with pytest.raises(kvarena.Unsupported, match="kind"):
        open_cache(prefix_cache=True)  # encoders depend on more than tokens


def test_groups_are_layer_groups():
    with pytest.raises(TypeError, match="LayerGroup"):
        open_cache([{"layers": [0]}])
    with pytest.raises(kvarena.InvalidArgument):
        open_cache([GROUPS[0], GROUPS[0]])


STATE = kvarena.LayerGroup(
    layers=[0, 1], kind="state", planes=[("f32", [4, 3]), ("bf16", [5])], rollback_tokens=2
)


def recur(cache, sequence, first, count):
    """A step of layers whose state is `state / 2 + token`, in each element of the first plane."""
    with cache.step([(sequence, count)]) as step:
        cache.synchronize()
        for layer in STATE.layers:
            view = cache.state_view(layer)
            slots, memory = step.states(view.group), floats(view.planes[0])
            assert numbers(slots.device_read) == slots.read[0]
            assert numbers(slots.device_write) == slots.write[0]
            assert numbers(slots.device_extra_offsets) == slots.extra_offsets
            assert (
                numbers(slots.device_extra_tokens)[: len(slots.extra_tokens)] == slots.extra_tokens
            )
            read = slots.read[0][view.part]
            state = 0.0 if read == -1 else memory[read][0]
            extras = dict(zip(slots.extra_tokens, slots.extra_slots, strict=True))
            for i in range(count):
                state = state / 2 + first + i
                if i in extras:
                    memory[extras[i][view.part]][0] = state
            memory[slots.write[0][view.part]][0] = state


def numbers(array):
    """The int32 numbers of an array of the host device."""
    shape, _, address = described(array)
    return list((ctypes.c_int32 * math.prod(shape)).from_address(address))


def floats(plane):
    """The slots of a plane of f32, as ctypes."""
    shape, strides, address = described(plane)
    assert shape[1:] == [4, 3]
    return [
        (ctypes.c_float * 12).from_address(address + slot * strides[0] * 4)
        for slot in range(shape[0])
    ]


def state_at(cache, sequence):
    """By a step that is given up."""
    found = []
    with pytest.raises(KeyError), cache.step([(sequence, 1)]) as step:
        cache.synchronize()
        for layer in STATE.layers:
            view = cache.state_view(layer)
            found.append(floats(view.planes[0])[step.states(0).read[0][view.part]][0])
        raise KeyError
    assert found[0] == found[1]
    return found[0]


def test_states_go_on_where_they_were():
    attention = kvarena.LayerGroup(layers=[2], num_kv_heads=1, head_dim=8, dtype="f32")
    with open_cache([attention, STATE], checkpoint_every_tokens=32) as cache:
        expected = [0.0]
        for token in range(100):
            expected.append(expected[-1] / 2 + token)
        sequence = cache.create_sequence()
        recur(cache, sequence, 0, 70)
        assert state_at(cache, sequence) == expected[70]
        assert sequence.checkpoints == [32, 64]
        fork = sequence.fork(64)
        assert state_at(cache, fork) == expected[64]
        sequence.truncate(69)
        assert state_at(cache, sequence) == expected[69]
        sequence.checkpoint()
        recur(cache, sequence, 69, 20)
        assert sequence.restorable_length(80) == 69
        first, tokens = sequence.group_blocks(0)
        blocks = [(first, tokens[:4]), sequence.state_blocks(64, 1)]
        twin = cache.create_sequence_from(64, blocks)
        cache.destroy([sequence, fork])
        assert state_at(cache, twin) == expected[64]
        with pytest.raises(kvarena.InvalidArgument):
            cache.state_view(2)
        twin.destroy()
        assert cache.parts()[1].referenced == 0
        cache.check()


def test_keys_of_an_index_are_where_the_view_says():
    tokens, dim = 20, 32
    group = kvarena.LayerGroup(layers=[0, 1, (2, 1)], index_dim=dim, **SIZES)
    with open_cache([group]) as cache:
        sequence = cache.create_sequence()
        # An element is 8 to 15 eighths of a power of two, times the token's scale.
        keys = Array([tokens, dim], [1.0 + i // dim % 16 for i in range(tokens * dim)])
        with cache.step([(sequence, tokens)]) as step:
            step.write_index(1, keys)
            with pytest.raises(kvarena.InvalidArgument):
                step.write_index(2, keys)
            with pytest.raises(ValueError, match="index_dim"):
                step.write_index(1, Array([tokens, dim // 2]))
        cache.synchronize()
        view = cache.index_view(1)
        shape, strides, first = described(view.keys)
        assert shape[1:] == [16, dim]
        scale_shape, scale_strides, first_scale = described(view.scales)
        assert scale_shape == shape[:2]
        blocks = sequence.group_blocks(0)[1]
        for token in range(tokens):
            block, place = blocks[token // 16], token % 16
            at = first + block * strides[0] + place * strides[1] + dim - 1
            byte = ctypes.c_uint8.from_address(at).value
            at = first_scale + 4 * (block * scale_strides[0] + place * scale_strides[1])
            scale = ctypes.c_float.from_address(at).value
            assert (8 + byte % 8) * 2.0 ** (byte // 8 - 10) * scale == 1 + token % 16
        with pytest.raises(kvarena.InvalidArgument):
            cache.index_view(2)


def test_scales_of_tokens_are_those_of_fp8():
    group = kvarena.LayerGroup(layers=[0], has_token_scales=True, **SIZES)
    with pytest.raises(kvarena.Unsupported, match="scale"):
        open_cache([group])
