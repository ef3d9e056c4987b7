"""The same calls on a GPU give what they give on the host. Skipped where there is none."""

import subprocess
import sys

import cudart
import pytest
from provider import Array

import kvarena

if not kvarena.has_cuda():
    pytest.skip("kvarena was built without CUDA", allow_module_level=True)
if cudart.load() is None:
    pytest.skip("there is no GPU", allow_module_level=True)

HEADS, KV_HEADS, DIM = 8, 2, 64


def cache_on(device, **options):
    chosen = {
        "num_layers": 2,
        "num_kv_heads": KV_HEADS,
        "head_dim": DIM,
        "num_q_heads": HEADS,
        "dtype": "f32",
        "num_blocks": 64,
        "max_sequences": 8,
    } | options
    return kvarena.Cache(kvarena.Device(device), kvarena.CacheOptions(**chosen))


@pytest.fixture
def caches():
    made = cache_on("cpu"), cache_on("cuda:0")
    yield made
    for cache in made:
        cache.close()


def tensors(n, seed):
    return (
        Array.random([n, HEADS, DIM], seed),
        Array.random([n, KV_HEADS, DIM], seed + 1),
        Array.random([n, KV_HEADS, DIM], seed + 2),
    )


def run_host(cache, demands, q, k, v):
    with cache.step(demands) as step:
        for layer in range(2):
            out = Array([q.shape[0], HEADS, DIM])
            step.write(layer, k, v)
            step.attend(layer, q, out=out)
    return list(out.memory)


def test_steps_give_what_they_give_on_the_host(caches):
    host, gpu = caches
    ours, theirs = host.create_sequence(), gpu.create_sequence()
    stream = cudart.Stream()
    for n, seed, chosen in [(37, 1, None), (1, 4, None), (1, 7, stream), (5, 9, 2)]:
        q, k, v = tensors(n, seed)
        expected = run_host(host, [(ours, n)], q, k, v)
        on_gpu = [cudart.GpuArray(t.shape, t) for t in (q, k, v)]
        out = cudart.GpuArray([n, HEADS, DIM])
        with gpu.step([(theirs, n)], stream=chosen) as step:
            for layer in range(2):
                step.write(layer, on_gpu[1], on_gpu[2])
                step.attend(layer, on_gpu[0], out=out)
        gpu.synchronize()
        assert out.host() == pytest.approx(expected, abs=2e-3)
    assert theirs.blocks == ours.blocks


def test_a_recorded_step_is_replayed(caches):
    host, gpu = caches
    sequences = [(host.create_sequence(), gpu.create_sequence()) for _ in range(3)]
    stream = cudart.Stream()
    rows = 4
    q, k, v = (cudart.GpuArray([rows, h, DIM]) for h in (HEADS, KV_HEADS, KV_HEADS))
    out = cudart.GpuArray([rows, HEADS, DIM])
    stream.begin_capture()
    with gpu.record(rows=rows, stream=stream) as step:
        assert step.num_tokens == rows
        for layer in range(2):
            step.write(layer, k, v)
            step.attend(layer, q, out=out)
    graph = stream.end_capture()
    for turn, live in enumerate([3, 2, 3, 1]):
        used = sequences[:live]
        inputs = tensors(rows, 100 + 3 * turn)
        for target, source in zip((q, k, v), inputs, strict=True):
            target.fill(source)
        with gpu.replay(graph_rows=rows, demands=[theirs for _, theirs in used], stream=stream):
            stream.launch(graph)
        gpu.synchronize()
        cut = [Array([live, *t.shape[1:]], list(t.memory)[: live * t.shape[1] * DIM]) for t in inputs]
        expected = run_host(host, [ours for ours, _ in used], *cut)
        assert out.host()[: live * HEADS * DIM] == pytest.approx(expected, abs=2e-3)
    gpu.check()


def test_a_step_says_what_it_put_on_the_device(caches):
    _, gpu = caches
    sequences = [gpu.create_sequence() for _ in range(2)]
    with gpu.step([(sequences[0], 17), (sequences[1], 3)]) as step:
        batch = step.device_batch()
        assert (batch.num_rows, batch.num_tokens, batch.max_length) == (2, 20, 17)
        assert batch.lengths.__dlpack_device__() == (2, 0)
        assert step.slots is not None


def test_tensors_elsewhere_are_refused(caches):
    _, gpu = caches
    with gpu.step([gpu.create_sequence()]) as step:
        key = Array([1, KV_HEADS, DIM])
        with pytest.raises(ValueError, match="key: a tensor on the host; accepted: .* cuda:0"):
            step.write(0, key, key)
        other = Array([1, KV_HEADS, DIM], device=(2, 1))
        with pytest.raises(ValueError, match="key: a tensor on cuda:1; accepted: .* cuda:0"):
            step.write(0, other, other)
        good = cudart.GpuArray([1, KV_HEADS, DIM], key)
        step.write(0, good, good)
        q = cudart.GpuArray([1, HEADS, DIM])
        with pytest.raises(TypeError, match="out: None .*; accepted: a tensor on the GPU"):
            step.attend(0, q)


def test_device_facts_and_memory():
    device = kvarena.Device("cuda:0")
    info = device.info()
    assert info.is_cuda and info.total_bytes > info.free_bytes > 0
    memory = device.allocate(4096, purpose="kv_cache")
    assert memory.__dlpack_device__() == (2, 0)
    assert device.info().tracked_bytes == info.tracked_bytes + 4096
    del memory
    assert device.info().tracked_bytes == info.tracked_bytes
    assert "residency" in device.verify() or device.verify()


def test_the_interpreter_ends_with_live_objects():
    program = """
import kvarena
cache = kvarena.Cache(kvarena.Device("cuda:0"), kvarena.CacheOptions(num_layers=1, num_kv_heads=1,
    head_dim=64, num_q_heads=1, num_blocks=4))
sequence = cache.create_sequence()
step = cache.step([sequence]); step.__enter__()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
