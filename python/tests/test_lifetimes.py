"""What close ends and what lives on: arrays in the memory of a cache or a device, and cycles."""

import gc
import weakref

import pytest
from provider import Array

import kvarena

KEY, QUERY = [1, 2, 16], [1, 4, 16]


def views_of(cache):
    """Arrays in the cache's memory, as memoryviews."""
    with cache.step([cache.create_sequence()]) as step:
        batch = step.device_batch()
        return [
            memoryview(array)
            for array in (cache.layer_view(0).key, batch.block_tables, batch.lengths, batch.slots)
        ]


@pytest.mark.parametrize("inline_calls", [True, False])
def test_arrays_keep_the_memory_of_a_closed_cache(make_cache, inline_calls):
    device = kvarena.Device(inline_calls=inline_calls)
    cache = make_cache(device)
    taken = device.info().tracked_bytes
    assert taken > 0
    views = views_of(cache)
    cache.close()
    assert [view.tolist() is not None for view in views] == [True] * 4
    assert views[2].tolist() == [1]
    assert device.info().tracked_bytes == taken
    views.pop(0)
    assert device.info().tracked_bytes == taken
    views.clear()
    assert device.info().tracked_bytes == 0


def test_without_arrays_close_frees_at_once(make_cache):
    device = kvarena.Device()
    cache = make_cache(device)
    views_of(cache)
    cache.close()
    assert device.info().tracked_bytes == 0


def test_arrays_outlive_a_with_block_and_the_cache(make_cache):
    device = kvarena.Device()
    with kvarena.Cache(device, make_cache().options) as cache:
        view = memoryview(cache.layer_view(1).value)
    assert view.shape == (16, 2, 4, 16) and view.tolist()
    cache = kvarena.Cache(device, make_cache().options)
    other = memoryview(cache.layer_view(1).value)
    del cache
    assert view.tolist() and other.tolist()
    del view, other
    assert device.info().tracked_bytes == 0


def test_arrays_keep_the_memory_of_a_closed_device():
    device = kvarena.Device()
    view = memoryview(device.allocate(1 << 20)).cast("B")
    device.close()
    device.close()
    view[0] = view[-1] = 7
    assert view[-1] == 7
    assert repr(device) == "<kvarena.Device closed>"
    for call in (device.info, device.json, device.create_stream, lambda: device.allocate(8)):
        with pytest.raises(kvarena.FailedPrecondition, match="^the device is closed$"):
            call()
    with pytest.raises(kvarena.FailedPrecondition, match="^the device is closed$"):
        kvarena.Cache(
            device,
            kvarena.CacheOptions(
                num_layers=1, num_kv_heads=1, head_dim=8, num_q_heads=1, num_blocks=1
            ),
        )


def test_a_cache_lives_on_when_its_device_is_closed(make_cache):
    device = kvarena.Device()
    cache = make_cache(device)
    device.close()
    with cache.step([cache.create_sequence()]) as step:
        step.write(0, Array(KEY), Array(KEY))
        step.attend(0, Array(QUERY))


@pytest.mark.parametrize("has_view", [True, False])
def test_calls_after_close_say_so(make_cache, has_view):
    cache = make_cache()
    sequence = cache.create_sequence()
    view = cache.layer_view(0) if has_view else None
    with cache.step([sequence]) as step:
        pass
    pin = sequence.pin()
    cache.close()
    cache.close()
    assert cache.name is None and cache.options.num_blocks == 16
    for call in (
        cache.stats,
        cache.check,
        cache.create_sequence,
        cache.synchronize,
        lambda: cache.layer_view(0),
        lambda: cache.step([sequence]).__enter__(),
        lambda: sequence.length,
        lambda: sequence.destroy(),
        lambda: pin.blocks,
        lambda: step.slots,
        lambda: step.append([sequence]),
        step.device_batch,
    ):
        with pytest.raises(kvarena.FailedPrecondition, match="^the cache is closed$"):
            call()
    del view


def test_closed_pools_kernels_and_monitors_say_so():
    pool = kvarena.Pool(1)
    pool.close()
    with pytest.raises(kvarena.FailedPrecondition, match="^the pool is closed$"):
        pool.stats()
    options = kvarena.KernelsOptions(
        num_kv_heads=1, head_dim=8, num_q_heads=1, max_rows=1, max_q_tokens=1, num_blocks=1
    )
    kernels = kvarena.Kernels(kvarena.Device(), options)
    kernels.close()
    with pytest.raises(kvarena.FailedPrecondition, match="^the kernels are closed$"):
        _ = kernels.workspace_bytes
    monitor = kvarena.Monitor(kvarena.MonitorOptions(no_thread=True))
    monitor.close()
    with pytest.raises(kvarena.FailedPrecondition, match="^the monitor is closed$"):
        monitor.check()


@pytest.mark.parametrize("has_view", [True, False])
def test_close_inside_a_step_aborts_it_and_hides_no_exception(make_cache, has_view):
    cache = make_cache()
    view = cache.layer_view(0) if has_view else None
    with pytest.raises(KeyError, match="mine"), cache.step([cache.create_sequence()]):
        cache.close()
        raise KeyError("mine")
    del view
    cache = make_cache()
    with pytest.raises(kvarena.FailedPrecondition, match="^the cache is closed$"):
        with cache.step([cache.create_sequence()]):
            cache.close()
    with pytest.raises(KeyError, match="mine"), make_cache() as cache:
        cache.close()
        raise KeyError("mine")


def test_close_by_a_producer_of_demands(make_cache):
    cache = make_cache()

    def demands():
        yield cache.create_sequence()
        cache.close()

    with pytest.raises(kvarena.FailedPrecondition, match="^the cache is closed$"):
        cache.step(demands()).__enter__()


class Engine:
    """Hears the operations or the events of what it owns."""

    def __init__(self, make):
        self.heard = []
        self.owned = make(self.hear)

    def hear(self, operation):
        self.heard.append(operation)


def make_pool(log):
    pool = kvarena.Pool(4, log=log)
    pool.open_holder()
    return pool


def make_sequence(log):
    cache = kvarena.Cache(
        kvarena.Device(),
        kvarena.CacheOptions(
            num_layers=1,
            num_kv_heads=1,
            head_dim=8,
            num_q_heads=1,
            num_blocks=4,
            dtype="f32",
            log=log,
        ),
    )
    sequences = [cache.create_sequence(), *cache.sequences()]
    with cache.step([sequences[0]]) as step:
        pass
    return cache, sequences, step, sequences[0].pin()


def make_cached(events):
    options = {"num_layers": 1, "num_kv_heads": 1, "head_dim": 8, "num_q_heads": 1, "num_blocks": 4}
    cache = kvarena.Cache(
        kvarena.Device(),
        kvarena.CacheOptions(**options, prefix_cache=True, prefix_events=events),
    )
    with cache.step([(cache.create_sequence(), 16)], tokens=list(range(16))):
        pass
    return cache


@pytest.mark.parametrize("make", [make_pool, make_sequence, make_cached])
def test_an_owner_that_hears_operations_is_collected(make):
    engine = Engine(make)
    assert engine.heard
    gone = weakref.ref(engine)
    del engine
    gc.collect()
    assert gone() is None


def test_an_owner_is_collected_while_an_array_lives():
    engine = Engine(make_sequence)
    view = memoryview(engine.owned[0].layer_view(0).key)
    device, gone = engine.owned[0].device, weakref.ref(engine)
    del engine
    gc.collect()
    assert gone() is None
    assert view.tolist() and device.info().tracked_bytes > 0
    del view
    assert device.info().tracked_bytes == 0
