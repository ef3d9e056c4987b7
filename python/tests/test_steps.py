"""Steps: entered once, never another step's values, and safe from code that runs while tensors are read."""

import gc
import threading

import pytest
from provider import Array

import kvarena

KEY, QUERY = [1, 2, 16], [1, 4, 16]


class Meanwhile(Array):
    """An array whose export runs a function first."""

    def __init__(self, shape, function):
        super().__init__(shape)
        self.function = function

    def __dlpack__(self, *, max_version=None, stream=None):
        self.function()
        return super().__dlpack__(stream=stream)


def test_a_step_is_entered_once(cache):
    sequence = cache.create_sequence()
    step = cache.step([sequence])
    with step:
        with pytest.raises(kvarena.FailedPrecondition, match="entered"):
            step.__enter__()
    with pytest.raises(kvarena.FailedPrecondition, match="entered"), step:
        pass
    assert sequence.length == 1
    refused = cache.step([(sequence, 99)])
    with pytest.raises(kvarena.Exhausted):
        refused.__enter__()
    with pytest.raises(kvarena.FailedPrecondition, match="entered"):
        refused.__enter__()


def test_a_step_that_could_not_begin_can_be_entered_later(cache):
    first, second = cache.create_sequence(), cache.create_sequence()
    waiting = cache.step([second])
    with cache.step([first]):
        with pytest.raises(kvarena.FailedPrecondition):
            waiting.__enter__()
    with waiting:
        pass
    assert second.length == 1


def test_an_old_step_has_its_own_values_or_none(cache):
    first, second = cache.create_sequence(), cache.create_sequence()
    with cache.step([(first, 3)]) as old:
        kept = memoryview(old.slots)
    with cache.step([(second, 5)]) as step:
        assert (old.num_tokens, old.new_blocks, step.num_tokens, step.new_blocks) == (3, 1, 5, 2)
        assert kept.tolist() == [0, 1, 2]
        assert memoryview(step.slots).tolist() == [second.slot(i) for i in range(5)]
        for call in (
            lambda: old.slots,
            old.device_batch,
            lambda: old.append([first]),
            lambda: old.write(0, Array([3, 2, 16]), Array([3, 2, 16])),
            lambda: old.attend(0, Array([3, 4, 16])),
        ):
            with pytest.raises(kvarena.FailedPrecondition, match="needs an open step"):
                call()
        old.__exit__(None, None, None)
        assert step.device_batch().num_tokens == 5
    assert (first.length, second.length) == (3, 5)


def test_an_open_step_that_is_dropped_is_aborted(cache):
    sequence = cache.create_sequence()
    step = cache.step([(sequence, 3)])
    step.__enter__()
    del step
    assert sequence.length == 0
    step = cache.step(cycle := [sequence])
    step.__enter__()
    cycle.append(step)
    del step, cycle
    gc.collect()
    assert sequence.length == 0
    with cache.step([sequence]):
        pass
    assert sequence.length == 1


def change_here(change):
    change()


def change_in_a_thread(change):
    thread = threading.Thread(target=change)
    thread.start()
    thread.join()


@pytest.mark.parametrize("where", [change_here, change_in_a_thread])
@pytest.mark.parametrize("then", ["end", "abort", "another step", "close"])
@pytest.mark.parametrize("call", ["write", "attend", "out"])
def test_a_step_that_changes_while_tensors_are_read_is_refused(make_cache, where, then, call):
    cache = make_cache()
    sequence, other = cache.create_sequence(), cache.create_sequence()
    step = cache.step([sequence])
    step.__enter__()
    step.write(0, Array(KEY), Array(KEY))
    later = []

    def change():
        if then == "close":
            cache.close()
            return
        error = ValueError() if then == "abort" else None
        step.__exit__(type(error) if error else None, error, None)
        if then == "another step":
            later.append(cache.step([(other, 40)]))
            later[0].__enter__()
            later[0].write(0, Array([40, 2, 16]), Array([40, 2, 16]))

    out = Array([40, 4, 16], [9] * (40 * 4 * 16))
    out.shape = tuple(QUERY)
    with pytest.raises(kvarena.FailedPrecondition, match="changed while|cache is closed"):
        if call == "write":
            step.write(0, Meanwhile(KEY, lambda: where(change)), Array(KEY))
        elif call == "attend":
            step.attend(0, Meanwhile(QUERY, lambda: where(change)), out=out)
        else:
            out = Meanwhile(QUERY, lambda: where(change))
            step.attend(0, Array(QUERY), out=out)
    assert call == "out" or set(out.memory) == {9}
    for step in later:
        step.__exit__(None, None, None)


def test_demands_that_change_the_step_are_refused(cache):
    first, second = cache.create_sequence(), cache.create_sequence()
    with cache.step() as step:

        def demands():
            yield first
            step.append([second])

        with pytest.raises(kvarena.FailedPrecondition, match="changed while"):
            step.append(demands())
        assert step.num_tokens == 1
    assert (first.length, second.length) == (0, 1)


def test_a_refused_append_inside_demands_leaves_them_as_they_are(cache):
    sequence = cache.create_sequence()
    with cache.step() as step:

        def demands():
            yield sequence
            with pytest.raises(TypeError):
                step.append([None])

        step.append(demands())
        assert step.num_tokens == 1
