"""Calls that may wait let other Python threads run."""

import functools
import sys
import threading

import pytest
from provider import Array

import kvarena

BURN = range(3_000_000)


def lets_others_run(call):
    """Whether a thread that waits for the GIL gets it while the call is made.

    The functions are called in a loop of C, which looks for no thread that waits: only a call that
    releases the GIL lets one run. The sum takes long enough for the thread to ask for the GIL.
    """
    ran = []
    lock = threading.Lock()
    lock.acquire()

    def run():
        with lock:
            ran.append(True)

    thread = threading.Thread(target=run)
    thread.start()
    chain = [functools.partial(f) for f in (lock.release, functools.partial(sum, BURN), call)]
    chain.append(functools.partial(len, ran))
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    try:
        found = list(map(functools.partial.__call__, chain))
    finally:
        sys.setswitchinterval(interval)
    thread.join()
    return found[-1] > 0


def check():
    return kvarena.Pool(16).check


def create_stream():
    return kvarena.Device().create_stream


def facts():
    return kvarena.Device().info


def end_of_memory():
    arrays = [kvarena.Device().allocate(1 << 16)]
    return arrays.clear


def end_of_memory_of_a_closed_device():
    device = kvarena.Device()
    arrays = [device.allocate(1 << 16)]
    device.close()
    return arrays.clear


def register():
    return functools.partial(kvarena.Device().register, Array([64]), defer=True)


def unregister():
    device, array = kvarena.Device(), Array([64])
    device.register(array, defer=True)
    return functools.partial(device.unregister, array)


def report_memory():
    return functools.partial(kvarena.Device().report_memory, "name", "kv_cache", 1)


def make_cache():
    options = {"num_layers": 1, "num_kv_heads": 1, "head_dim": 8, "num_q_heads": 1}
    return kvarena.Cache(kvarena.Device(), kvarena.CacheOptions(num_blocks=4, **options))


def open_ticket():
    return make_cache().open_ticket


def fence():
    cache = make_cache()
    return functools.partial(cache.fence, cache.stream)


def retire():
    cache = make_cache()
    return functools.partial(cache.retire, cache.open_ticket())


@pytest.mark.parametrize(
    "make",
    [
        check,
        create_stream,
        facts,
        end_of_memory,
        end_of_memory_of_a_closed_device,
        register,
        unregister,
        report_memory,
        open_ticket,
        fence,
        retire,
    ],
)
def test_a_call_that_may_wait_releases_the_gil(make):
    # A machine may have no core for the thread in time.
    assert any(lets_others_run(make()) for _ in range(20))


def test_other_calls_keep_it():
    assert not any(lets_others_run(kvarena.now_ns) for _ in range(5))
