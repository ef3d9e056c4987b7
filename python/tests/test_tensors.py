"""Tensors in and out: no copy, results of every kind, refusals before anything is queued."""

import ctypes
import gc

import pytest
from provider import Array, alive, attention

import kvarena


def fill(cache, sequence, n, seed):
    k, v = Array.random([n, 2, 16], seed), Array.random([n, 2, 16], seed + 1)
    q = Array.random([n, 4, 16], seed + 2)
    outs = []
    with cache.step([(sequence, n)]) as step:
        for layer in range(2):
            out = Array([n, 4, 16])
            step.write(layer, k, v)
            assert step.attend(layer, q, out=out) is out
            outs.append(out)
    return q, k, v, outs


@pytest.mark.parametrize("inline_calls", [True, False])
def test_attention_is_that_of_plain_python(make_cache, inline_calls):
    cache = make_cache(kvarena.Device(inline_calls=inline_calls))
    sequence = cache.create_sequence()
    keys, values = [], []
    for n, seed in [(6, 1), (1, 4), (3, 7)]:
        q, k, v, outs = fill(cache, sequence, n, seed)
        cache.synchronize()
        keys += k.rows()
        values += v.rows()
        expected = attention(q.rows(), keys, values)
        for out in outs:
            for token, wanted in zip(out.rows(), expected, strict=True):
                for head, numbers in zip(token, wanted, strict=True):
                    assert head == pytest.approx(numbers, abs=1e-5)


def test_a_result_without_out_is_memory_of_the_core(cache):
    sequence = cache.create_sequence()
    k = v = Array.random([1, 2, 16], 1)
    with cache.step([sequence]) as step:
        step.write(0, k, v)
        out = step.attend(0, Array.random([1, 4, 16], 2))
    view = memoryview(out)
    assert (view.shape, view.format) == ((1, 4, 16), "f")
    assert view.tolist()[0][0] == pytest.approx(v.rows()[0][0], abs=1e-6)
    assert out.__dlpack_device__() == (1, 0)


def test_tensors_are_held_while_queued_work_needs_them(make_cache):
    cache = make_cache(kvarena.Device(inline_calls=False))
    sequence = cache.create_sequence()
    del_me = []
    for step_number in range(4):
        fill(cache, sequence, 1, step_number)
    cache.synchronize()
    del del_me
    gc.collect()
    assert alive == {}


def test_every_export_is_given_back(cache):
    sequence = cache.create_sequence()
    fill(cache, sequence, 2, 1)
    gc.collect()
    assert alive == {}


KEY = [1, 2, 16]


class Tracked(Array):
    """An array whose gradient is wanted, as torch's tensors say it."""

    requires_grad = True


@pytest.mark.parametrize(
    ("key", "error", "text"),
    [
        (object(), TypeError, r"key: .*object.*; accepted: tensors with DLPack"),
        (Array(KEY, dtype="int64"), TypeError, "key: .*int64; accepted: float32"),
        (Array(KEY, dtype="float64"), TypeError, "key: .*float64; accepted: float32"),
        (Array([2, 2, 16]), ValueError, r"key: shape \[2, 2, 16\]; accepted: .*= \[1, 2, 16\]"),
        (Array([1, 32]), ValueError, r"key: shape \[1, 32\]; accepted: \[num_tokens, num_kv_heads"),
        (Array(KEY, strides=[1, 1, 2]), ValueError, "key: strides .*; accepted: heads and elem"),
        (Array(KEY, device=(2, 0)), ValueError, "key: a tensor on cuda:0; accepted: .* the host"),
        (Tracked(KEY), ValueError, "key: a tensor that requires grad; accepted: tensors without"),
    ],
)
def test_wrong_tensors_are_refused_by_name(cache, key, error, text):
    sequence = cache.create_sequence()
    with cache.step([sequence]) as step:
        with pytest.raises(error, match=text):
            step.write(0, key, Array(KEY))
        with pytest.raises(error, match=text.replace("key", "value", 1)):
            step.write(0, Array(KEY), key)
        with pytest.raises(kvarena.FailedPrecondition):  # nothing was queued
            step.attend(0, Array([1, 4, 16]))
        step.write(0, Array(KEY), Array(KEY))
        with pytest.raises((TypeError, ValueError), match="q: "):
            step.attend(0, key)
        with pytest.raises((TypeError, ValueError), match="out: "):
            step.attend(0, Array([1, 4, 16]), out=key)


def test_calls_out_of_order_are_refused(cache):
    sequence = cache.create_sequence()
    step = cache.step([sequence])
    with pytest.raises(kvarena.FailedPrecondition, match="open step"):
        step.write(0, Array(KEY), Array(KEY))
    with step:
        with pytest.raises(kvarena.FailedPrecondition), cache.step([sequence]):
            pass
        with pytest.raises(kvarena.FailedPrecondition):
            step.append([sequence])
    with pytest.raises(kvarena.InvalidArgument), cache.step([sequence]) as step:
        step.write(5, Array(KEY), Array(KEY))


@pytest.mark.parametrize(
    ("demands", "error"),
    [
        ([1], TypeError),
        ([(None, 1)], TypeError),
        ([("sequence",)], TypeError),
        (3, TypeError),
    ],
)
def test_wrong_demands_are_refused(cache, demands, error):
    with pytest.raises(error), cache.step(demands):
        pass
    cache.publish()  # no step is open


def test_demands_of_other_caches_and_negative_tokens_are_refused(make_cache):
    cache, other = make_cache(), make_cache()
    foreign, sequence = other.create_sequence(), cache.create_sequence()
    with pytest.raises(ValueError, match=r"demands\[1\]: a sequence of another cache"):
        with cache.step([sequence, foreign]):
            pass
    with pytest.raises(ValueError, match=r"demands\[0\]: -1 tokens"), cache.step([(sequence, -1)]):
        pass
    with pytest.raises(kvarena.DuplicateArgument), cache.step([sequence, sequence]):
        pass
    with pytest.raises(ValueError, match='"now"; accepted: "default", "growth", "admission"'):
        cache.step([sequence], urgency="now")


def test_layer_views_show_what_was_written(cache):
    sequence = cache.create_sequence()
    _, k, v, _ = fill(cache, sequence, 3, 1)
    view = cache.layer_view(1)
    assert view.tile_order == "rows"
    keys, values = memoryview(view.key).tolist(), memoryview(view.value).tolist()
    for token in range(3):
        for head in range(2):
            assert keys[0][head][token] == pytest.approx(k.rows()[token][head])
            assert values[0][head][token] == pytest.approx(v.rows()[token][head])


def test_tables_are_rows_of_ids(cache):
    a, b = cache.create_sequence(), cache.create_sequence()
    with cache.step([(a, 5), (b, 1)]):
        pass
    tables, lengths = Array([2, 3], dtype="int32"), Array([2], dtype="int32")
    cache.tables([a, b], tables, lengths)
    assert list(tables.memory) == [0, 1, -1, 2, -1, -1]
    assert list(lengths.memory) == [5, 1]
    with pytest.raises(TypeError, match="out: elements of type float32; accepted: int32"):
        cache.tables([a], Array([1, 3]))


def test_slots_are_those_of_the_sequences(cache):
    sequence = cache.create_sequence()
    with cache.step([(sequence, 6)]) as step:
        assert memoryview(step.slots).tolist() == [sequence.slot(i) for i in range(6)]


class Refusing(Array):
    """An array whose export raises."""

    def __init__(self, error):
        super().__init__(KEY)
        self.error = error

    def __dlpack__(self, **how):
        raise self.error


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3), MemoryError("much")])
def test_what_ends_a_program_passes_through_a_tensor(cache, error):
    with pytest.raises(type(error)) as caught, cache.step([cache.create_sequence()]) as step:
        step.write(0, Refusing(error), Array(KEY))
    assert caught.value is error


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (RuntimeError("the GPU is lost"), "key: its producer refuses DLPack: the GPU is lost"),
        (KeyError(), "key: its producer refuses DLPack: KeyError"),
        (TypeError("odd"), "key: its producer refuses DLPack: odd"),
    ],
)
def test_what_a_producer_says_is_kept(cache, error, text):
    with pytest.raises(ValueError) as caught, cache.step([cache.create_sequence()]) as step:
        step.write(0, Refusing(error), Array(KEY))
    assert str(caught.value) == text
    assert caught.value.__cause__ is error


@pytest.mark.parametrize("device", ["x", 1, None, (1,), ("cpu", 0), (1, None), (1, 2, 3)])
def test_a_device_that_is_none_is_refused_by_name(cache, device):
    with cache.step([cache.create_sequence()]) as step:
        with pytest.raises(TypeError) as caught:
            step.write(0, Array(KEY, device=device), Array(KEY))
    assert str(caught.value) == (
        f"key: a __dlpack_device__ that returns {device!r}; "
        "accepted: a tuple of device type and device id"
    )


def test_unaligned_tensors_are_refused_by_name(cache):
    key = Array(KEY)
    key.memory = bytearray(33 * 4)
    key.address = ctypes.addressof(ctypes.c_char.from_buffer(key.memory)) // 4 * 4 + 1
    with cache.step([cache.create_sequence()]) as step:
        with pytest.raises(
            ValueError, match="value: elements at .*; accepted: aligned memory, 4 b"
        ):
            step.write(0, Array(KEY), key)


def test_tensors_without_elements_are_dense(cache):
    """numpy gives them strides of 0."""
    sequence = cache.create_sequence()
    with cache.step([(sequence, 0)]) as step:
        nothing = Array([0, 2, 16], strides=[0, 0, 0])
        step.write(0, nothing, nothing)
        step.attend(0, Array([0, 4, 16], strides=[0, 0, 0]), out=Array([0, 4, 16]))
    assert sequence.length == 0
