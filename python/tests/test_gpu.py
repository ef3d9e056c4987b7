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
    with gpu.record(rows=rows, row_tokens=40, stream=stream) as step:
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
        cut = [
            Array([live, *t.shape[1:]], list(t.memory)[: live * t.shape[1] * DIM]) for t in inputs
        ]
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
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr


def test_latents_for_own_tables():
    """MLA: 16 query heads over latents of 576 elements, a prompt and then single tokens."""
    torch = pytest.importorskip("torch")
    device = kvarena.Device("cuda:0")
    pool = torch.full([32, 1, 16 * 576], float("nan"), dtype=torch.bfloat16, device="cuda")
    view = kvarena.LayerView(pool, pool, "chunked")
    kernels = kvarena.Kernels(
        device,
        kvarena.KernelsOptions(
            num_kv_heads=1,
            head_dim=576,
            head_dim_v=512,
            value_in_key=True,
            dtype=torch.bfloat16,
            num_q_heads=16,
            num_blocks=32,
            max_rows=4,
            max_q_tokens=256,
            tile_order="chunked",
        ),
    )
    torch.manual_seed(5)
    latents = torch.randn(101, 1, 576, dtype=torch.bfloat16, device="cuda")
    q = torch.randn(101, 16, 576, dtype=torch.bfloat16, device="cuda")
    blocks = [9, 4, 30, 2, 11, 17, 0]
    slots = [blocks[i // 16] * 16 + i % 16 for i in range(101)]

    def numbers(values, dtype=torch.int64):
        return torch.tensor(values, dtype=dtype, device="cuda")

    for first, last in [(0, 100), (100, 101)]:
        kernels.schedule(
            numbers([blocks], torch.int32),
            numbers([last], torch.int32),
            numbers([0, last - first]),
            row_offsets=numbers([0]),
            row_slots=numbers([0], torch.int32),
            query_tokens=[last - first],
            host_lengths=[last],
        )
        kernels.write(view, numbers(slots[first:last]), latents[first:last], None)
        out = kernels.attend(view, q[first:last])
        k = latents[:last].float().transpose(0, 1)
        mask = torch.ones(last - first, last, dtype=torch.bool, device="cuda").tril(first)
        expected = torch.nn.functional.scaled_dot_product_attention(
            q[first:last].float().transpose(0, 1),
            k.expand(16, -1, -1),
            k[..., :512].expand(16, -1, -1),
            attn_mask=mask,
        ).transpose(0, 1)
        torch.testing.assert_close(out.float(), expected, atol=0.02, rtol=0.02)


@pytest.mark.parametrize("tile_order", ["rows", "chunked"])
def test_kernels_for_own_tables_in_a_cuda_graph(tile_order):
    """The same graph serves other tables and lengths, and skips rows without a sequence."""
    torch = pytest.importorskip("torch")
    shape = {"num_kv_heads": 2, "head_dim": 64, "dtype": torch.bfloat16, "num_blocks": 32}
    device = kvarena.Device("cuda:0")
    options = kvarena.CacheOptions(num_layers=2, num_q_heads=8, tile_order=tile_order, **shape)
    bytes = kvarena.pool_plan(options).pool_bytes
    memory = torch.zeros(bytes, dtype=torch.uint8, device="cuda")
    device.register(memory, description="the engine's pool")
    device.verify()
    view = kvarena.layer_view(device, options, memory, 1)
    view = view._replace(key=torch.from_dlpack(view.key), value=torch.from_dlpack(view.value))
    kernels = kvarena.Kernels(
        device,
        kvarena.KernelsOptions(
            num_q_heads=8, max_rows=4, max_q_tokens=256, tile_order=tile_order, **shape
        ),
    )

    def dense(q, k, v):
        q, k, v = (t.float().transpose(0, 1) for t in (q, k, v))
        k, v = (t.repeat_interleave(4, 0) for t in (k, v))
        rows, keys = q.shape[1], k.shape[1]
        mask = torch.ones(rows, keys, dtype=torch.bool, device="cuda").tril(keys - rows)
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(
            0, 1
        )

    def random(*size):
        return torch.randn(*size, dtype=torch.bfloat16, device="cuda")

    def numbers(values, dtype=torch.int64):
        return torch.tensor(values, dtype=dtype, device="cuda")

    # Prompts of 70 and 33 tokens.
    torch.manual_seed(3)
    lengths, blocks = [70, 33], [[9, 4, 30, 2, 11], [1, 6, 7, 0, 0]]
    k, v, q = random(103, 2, 64), random(103, 2, 64), random(103, 8, 64)
    slots = [blocks[r][i // 16] * 16 + i % 16 for r in (0, 1) for i in range(lengths[r])]
    tables = numbers(blocks, torch.int32)
    kernels.schedule(
        tables,
        numbers(lengths, torch.int32),
        numbers([0, 70, 103]),
        row_slots=numbers([0, 1], torch.int32),
        row_offsets=numbers([0, 5]),
        query_tokens=lengths,
    )
    kernels.write(view, numbers(slots), k, v)
    out = kernels.attend(view, q, overlap=True)
    kernels.check_tables()
    for first, last in [(0, 70), (70, 103)]:
        expected = dense(q[first:last], k[first:last], v[first:last])
        torch.testing.assert_close(out[first:last].float(), expected, atol=0.02, rtol=0.02)

    # Decode of one token each, recorded for four rows.
    at = numbers([0] * 4, torch.int32)
    tables4 = torch.zeros(4, 5, dtype=torch.int32, device="cuda")
    slots4 = numbers([-1] * 4)
    q4, k4, v4 = random(4, 8, 64), random(4, 2, 64), random(4, 2, 64)
    rows, offsets = (
        torch.arange(4, dtype=torch.int32, device="cuda"),
        torch.arange(5, device="cuda"),
    )
    out4 = torch.zeros(4, 8, 64, dtype=torch.bfloat16, device="cuda")

    def decode():
        skipped = torch.where(at > 0, rows, -1)
        kernels.schedule(tables4, at, offsets, row_slots=skipped, row_offsets=offsets[:4] * 5)
        kernels.write(view, slots4, k4, v4)
        kernels.attend(view, q4, out=out4, overlap=True)

    decode()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        decode()
    keys, values = [k[:70], k[70:]], [v[:70], v[70:]]
    for step in range(3):
        live = [0, 1] if step < 2 else [1]
        at.zero_(), slots4.fill_(-1), k4.normal_(), v4.normal_(), q4.normal_()
        for place, row in enumerate(live):
            keys[row] = torch.cat([keys[row], k4[place : place + 1]])
            values[row] = torch.cat([values[row], v4[place : place + 1]])
            n = len(keys[row])
            at[place] = n
            tables4[place] = tables[row]
            slots4[place] = blocks[row][(n - 1) // 16] * 16 + (n - 1) % 16
        graph.replay()
        for place, row in enumerate(live):
            expected = dense(q4[place : place + 1], keys[row], values[row])
            torch.testing.assert_close(
                out4[place : place + 1].float(), expected, atol=0.02, rtol=0.02
            )
    torch.cuda.synchronize()
    kernels.close()
    device.unregister(memory)
