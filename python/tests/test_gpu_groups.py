"""Layers that keep different data, on a GPU, against torch. Skipped where there is none."""

import subprocess
import sys
from pathlib import Path

import cudart
import pytest

import kvarena

if not kvarena.has_cuda():
    pytest.skip("kvarena was built without CUDA", allow_module_level=True)
if cudart.load() is None:
    pytest.skip("there is no GPU", allow_module_level=True)

HEADS, KV_HEADS, DIM = 8, 2, 64
SIZES = {"num_kv_heads": KV_HEADS, "head_dim": DIM}


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


def cache_of(groups, heads=HEADS, **options):
    chosen = {
        "num_blocks": 64,
        "num_q_heads": heads,
        "max_sequences": 8,
        "max_sequence_tokens": 512,
    } | options
    return kvarena.Cache(kvarena.Device("cuda:0"), kvarena.CacheOptions(groups=groups, **chosen))


def random(torch, *size, seed):
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(*size, generator=generator, dtype=torch.bfloat16, device="cuda")


def dense(torch, q, k, v, window=None):
    """Attention of the last len(q) tokens: q [rows, heads, dim]; k, v [tokens, kv heads, dim]."""
    rows, keys = q.shape[0], k.shape[0]
    group = q.shape[1] // k.shape[1]
    mask = torch.ones(rows, keys, dtype=torch.bool, device="cuda").tril(keys - rows)
    if window is not None:
        mask &= ~torch.ones_like(mask).tril(keys - rows - window)
    return torch.nn.functional.scaled_dot_product_attention(
        q.float().transpose(0, 1),
        k.float().transpose(0, 1).repeat_interleave(group, 0),
        v.float().transpose(0, 1).repeat_interleave(group, 0),
        attn_mask=mask,
    ).transpose(0, 1)


def test_windows_beside_full_layers(torch):
    window = 40
    groups = [
        kvarena.LayerGroup(layers=[0], dtype=torch.bfloat16, **SIZES),
        kvarena.LayerGroup(
            layers=[1, (2, 1)], kind="window", limit_tokens=window, dtype=torch.bfloat16, **SIZES
        ),
    ]
    k = [random(torch, 130, KV_HEADS, DIM, seed=layer) for layer in range(3)]
    v = [random(torch, 130, KV_HEADS, DIM, seed=10 + layer) for layer in range(3)]
    q = random(torch, 130, HEADS, DIM, seed=20)
    with cache_of(groups) as cache:
        sequence = cache.create_sequence()
        for first, last in [(0, 100), *((i, i + 1) for i in range(100, 130))]:
            with cache.step([(sequence, last - first)]) as step:
                for layer in range(3):
                    if layer < 2:
                        step.write(layer, k[layer][first:last], v[layer][first:last])
                    source = min(layer, 1)
                    out = step.attend(layer, q[first:last])
                    expected = dense(
                        torch,
                        q[first:last],
                        k[source][:last],
                        v[source][:last],
                        window if layer > 0 else None,
                    )
                    torch.testing.assert_close(out.float(), expected, atol=0.02, rtol=0.02)
        assert sequence.group_blocks(0)[0] == 0
        assert sequence.group_blocks(1)[0] == (130 - window) // 16
        cache.check()


def test_a_dense_table_is_gathered_from_the_batch(torch):
    """What docs/reference/python.md shows to kernels that read [rows, blocks]."""
    with cache_of([kvarena.LayerGroup(layers=[0], dtype=torch.bfloat16, **SIZES)]) as cache:
        sequences = [cache.create_sequence() for _ in range(3)]
        with cache.step(list(zip(sequences, (70, 5, 33), strict=True))) as step:
            batch = step.device_batch()
            most_blocks = -(-batch.max_length // 16)
            entries = torch.from_dlpack(batch.block_tables)
            offsets = torch.from_dlpack(batch.row_offsets)
            places = offsets[:, None] + torch.arange(most_blocks, device=entries.device)
            rows = entries[places.clamp(max=entries.numel() - 1)]
            lengths = torch.from_dlpack(batch.lengths).tolist()
            cache.synchronize()
        assert rows.shape == (3, 5) and lengths == [70, 5, 33]
        for row, sequence in zip(rows.tolist(), sequences, strict=True):
            blocks = sequence.group_blocks(0)[1]
            assert row[: len(blocks)] == blocks


def test_keys_of_an_index(torch):
    tokens, dim = 70, 128
    group = kvarena.LayerGroup(layers=[0, 1], index_dim=dim, dtype=torch.bfloat16, **SIZES)
    keys = random(torch, tokens, dim, seed=3) * torch.arange(1, tokens + 1, device="cuda")[:, None]
    with cache_of([group]) as cache:
        sequence = cache.create_sequence()
        with cache.step([(sequence, tokens)]) as step:
            step.write_index(1, keys)
        cache.synchronize()
        view = cache.index_view(1)
        kept = torch.from_dlpack(view.keys).view(torch.float8_e4m3fn).float()
        scales = torch.from_dlpack(view.scales)
        blocks = torch.tensor(sequence.group_blocks(0)[1], device="cuda")
        kept, scales = kept[blocks].flatten(0, 1)[:tokens], scales[blocks].flatten()[:tokens]
        largest = keys.float().abs().amax(1)
        # The smallest power of two with which no element is more than 448.
        assert torch.equal(scales, torch.exp2(torch.ceil(torch.log2(largest / 448))))
        error = (kept * scales[:, None] - keys.float()).abs()
        assert bool((error <= keys.float().abs() / 16 + scales[:, None] / 512).all())


def rounded_to_fp8(torch, values):
    """By the scale of the last dimension: the smallest power of two with which nothing is above 448."""
    scale = torch.exp2(torch.ceil(torch.log2(values.float().abs().amax(-1, keepdim=True) / 448)))
    return (values.float() / scale).to(torch.float8_e4m3fn).float() * scale


def test_scales_of_tokens(torch):
    group = kvarena.LayerGroup(layers=[0], dtype="fp8_e4m3", has_token_scales=True, **SIZES)
    # Tokens of very different sizes: one scale for all would lose the small ones.
    sizes = torch.exp2(torch.arange(101, device="cuda") % 12 - 6).to(torch.bfloat16)[:, None, None]
    k, v = random(torch, 101, KV_HEADS, DIM, seed=1), random(torch, 101, KV_HEADS, DIM, seed=2)
    q = random(torch, 101, HEADS, DIM, seed=3)
    k = k * sizes / 8
    with cache_of([group]) as cache:
        sequence = cache.create_sequence()
        for first, last in [(0, 100), (100, 101)]:
            with cache.step([(sequence, last - first)]) as step:
                step.write(0, k[first:last], v[first:last])
                out = step.attend(0, q[first:last])
            kept = []
            for source in (k, v):
                kept.append(rounded_to_fp8(torch, source[:last]))
            expected = dense(torch, q[first:last], *kept)
            torch.testing.assert_close(out.float(), expected, atol=0.08, rtol=0.08)
        view = cache.layer_view(0)
        blocks = torch.tensor(sequence.group_blocks(0)[1], device="cuda")
        scales = torch.from_dlpack(view.key_scales)[blocks].transpose(1, 2).flatten(0, 1)[:101]
        largest = k.float().abs().amax(2)
        assert bool((scales >= largest / 449).all() and (scales <= largest / 448 * 2.01).all())


def latents_in_the_pool(torch, latents):
    """What rows of 656 bytes keep: four runs of 128 elements in fp8, the other 64 as they are."""
    runs = rounded_to_fp8(torch, latents[..., :512].unflatten(-1, (4, 128))).flatten(-2)
    return torch.cat([runs, latents[..., 512:].float()], -1)


def latents_of(torch):
    return random(torch, 101, 1, 576, seed=4), random(torch, 101, 16, 576, seed=5)


def test_latents_of_656_bytes_in_a_cache(torch):
    group = kvarena.LayerGroup(
        layers=[0],
        num_kv_heads=1,
        head_dim=576,
        head_dim_v=512,
        value_in_key=True,
        dtype="latent_fp8",
    )
    latents, q = latents_of(torch)
    with cache_of([group], heads=16) as cache:
        sequence = cache.create_sequence()
        for first, last in [(0, 100), (100, 101)]:
            with cache.step([(sequence, last - first)]) as step:
                step.write(0, latents[first:last], None)
                out = step.attend(0, q[first:last])
            kept = latents_in_the_pool(torch, latents[:last])
            expected = dense(torch, q[first:last], kept, kept[:, :, :512])
            torch.testing.assert_close(out.float(), expected, atol=0.08, rtol=0.08)


def test_latents_of_656_bytes_for_own_tables(torch):
    latents, q = latents_of(torch)
    pool = torch.full([32, 1, 16, 656], 255, dtype=torch.uint8, device="cuda")
    view = kvarena.LayerView(pool, pool, "rows")
    kernels = kvarena.Kernels(
        kvarena.Device("cuda:0"),
        kvarena.KernelsOptions(
            num_kv_heads=1,
            head_dim=576,
            head_dim_v=512,
            value_in_key=True,
            dtype="latent_fp8",
            num_q_heads=16,
            num_blocks=32,
            max_rows=4,
            max_q_tokens=256,
            tile_order="rows",
        ),
    )
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
        )
        kernels.write(view, numbers(slots[first:last]), latents[first:last], None)
        out = kernels.attend(view, q[first:last])
        kept = latents_in_the_pool(torch, latents[:last])
        expected = dense(torch, q[first:last], kept, kept[:, :, :512])
        torch.testing.assert_close(out.float(), expected, atol=0.08, rtol=0.08)
    # The last 64 elements are kept as they are.
    rope = pool[blocks[0], 0, 0, 528:].view(torch.bfloat16)
    assert torch.equal(rope, latents[0, 0, 512:])


def recur(torch, view, slots, tokens):
    """Halves each row's state and adds its token, by operations that a CUDA graph can hold."""
    planes = torch.from_dlpack(view.planes[0])  # [slots, 4]
    read = torch.from_dlpack(slots.device_read)[:, view.part]
    write = torch.from_dlpack(slots.device_write)[:, view.part]
    before = torch.where(read[:, None] < 0, 0.0, planes[read.clamp(min=0).long()])
    after = before / 2 + tokens[: len(read), None]
    target = torch.arange(len(planes), device="cuda", dtype=torch.int32)[:, None] == write[None, :]
    planes.copy_(torch.where(target.any(1, keepdim=True), target.float() @ after, planes))


def state_of(torch, cache, view, sequence):
    """By a step that is given up."""
    found = None
    with pytest.raises(KeyError), cache.step([(sequence, 1)]) as step:
        slot = int(torch.from_dlpack(step.states(0).device_read)[0, view.part])
        found = torch.from_dlpack(view.planes[0])[slot].tolist()
        raise KeyError
    return found


@pytest.mark.parametrize("recorded", [False, True], ids=["eager", "recorded"])
def test_states_on_the_device(torch, recorded):
    groups = [
        kvarena.LayerGroup(layers=[1], dtype="bf16", **SIZES),
        kvarena.LayerGroup(
            layers=[0], kind="state", planes=[("f32", [4])], state_mode="read_write"
        ),
    ]
    with cache_of(groups, checkpoint_every_tokens=-1) as cache:
        view = cache.state_view(0)
        tokens = torch.zeros(4, device="cuda")
        sequences = [cache.create_sequence() for _ in range(3)]
        graph = None
        if recorded:
            graph = torch.cuda.CUDAGraph()
            torch.ones(4, 4, device="cuda") @ torch.ones(4, 4, device="cuda")  # loads what it needs
            torch.cuda.synchronize()
            with torch.cuda.graph(graph), cache.record(rows=4) as step:
                recur(torch, view, step.states(0), tokens)
        expected = [0.0] * 3
        for turn in range(6):
            rows = [0, 1, 2] if turn % 2 == 0 else [2, 0]
            for place, row in enumerate(rows):
                tokens[place] = 10 * turn + row
                expected[row] = expected[row] / 2 + 10 * turn + row
            demands = [(sequences[row], 1) for row in rows]
            if graph is not None:
                with cache.replay(graph_rows=4, demands=demands):
                    graph.replay()
            else:
                with cache.step(demands) as step:
                    recur(torch, view, step.states(0), tokens)
        cache.synchronize()
        for sequence, value in zip(sequences, expected, strict=True):
            assert state_of(torch, cache, view, sequence) == [value] * 4
        fork = sequences[0].fork()
        tokens.fill_(7)
        with cache.step([(fork, 1)]) as step:
            recur(torch, view, step.states(0), tokens)
        assert state_of(torch, cache, view, fork) == [expected[0] / 2 + 7] * 4
        assert state_of(torch, cache, view, sequences[0]) == [expected[0]] * 4
        cache.check()


LOST = """
import sys

sys.path.insert(0, {folder!r})
import cudart
import kvarena
from provider import Array

assert cudart.load() is not None
device = kvarena.Device("cuda:0")
options = kvarena.CacheOptions(num_layers=1, num_kv_heads=1, head_dim=64, num_q_heads=1, num_blocks=4)
first, second = kvarena.Cache(device, options), kvarena.Cache(device, options)
kernels = kvarena.Kernels(device, kvarena.KernelsOptions(num_kv_heads=1, head_dim=64, num_q_heads=1,
    num_blocks=4, max_rows=1, max_q_tokens=1))
kept = device.allocate(4096), first.layer_view(0), second.create_sequence()
wild = Array([1, 1, 64], device=(2, 0))
wild.address = 1 << 20  # no memory of the GPU
try:
    with first.step([first.create_sequence()]) as step:
        step.write(0, wild, wild)
    first.synchronize()
except kvarena.DeviceError as error:
    print("lost", error.native)
try:
    second.synchronize()
    with second.step([kept[2]]):
        pass
    second.synchronize()
except kvarena.Error as error:
    print("second", type(error).__name__)
objects = dict(device=device, first=first, second=second, kernels=kernels)
for name in {order!r}:
    try:
        objects[name].close()
    except kvarena.Error as error:
        print(name, type(error).__name__)
print("done")
"""
ORDERS = [
    [],  # the interpreter ends with all of them
    ["device", "first", "second", "kernels"],
    ["kernels", "second", "first", "device"],
    ["second", "device", "kernels", "first"],
    ["first", "kernels", "device"],
]


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: "-".join(order) or "open")
def test_a_lost_gpu_crashes_nothing(order):
    program = LOST.format(folder=str(Path(__file__).parent), order=order)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert "lost 700" in lines and lines[-1] == "done", done.stdout + done.stderr
