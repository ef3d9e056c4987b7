"""nano-vllm on kvarena gives the tokens of dense attention, in float32; blocks come back, prefixes are found."""

import random

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from kvarena import nano_vllm  # noqa: E402

try:
    import nano_engine
except ImportError as error:
    pytest.skip(f"nano-vllm cannot be imported: {error}", allow_module_level=True)

from nano_engine import IS_UPSTREAM, dense_tokens, make_engine, make_folder  # noqa: E402
from nanovllm.sampling_params import SamplingParams  # noqa: E402

NEW_TOKENS = 60
LENGTHS = [30, 250, 256, 257, 300, 520]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("qwen3")
    make_folder(made)
    return made


def prompts(lengths=LENGTHS, seed=3):
    numbers = random.Random(seed)
    return [[numbers.randrange(2, 4001) for _ in range(n)] for n in lengths]


def greedy(count, tokens=NEW_TOKENS):
    # nano-vllm always samples. At this temperature the likeliest token has all the weight.
    return [SamplingParams(temperature=1e-5, max_tokens=tokens, ignore_eos=True)] * count


@pytest.fixture(scope="module")
def expected(folder):
    engine = make_engine(folder, 32)
    tokens = [dense_tokens(engine.runner.model, ids, NEW_TOKENS) for ids in prompts()]
    engine.close()
    assert min(len(set(row)) for row in tokens) >= 40
    return tokens


@pytest.fixture
def engine(folder, request):
    made = make_engine(folder, **getattr(request, "param", {"num_blocks": 32}))
    yield made
    made.close()


def all_are_back(pool):
    stats = pool.stats()
    return stats.free + stats.evictable == stats.num_blocks and not pool.holders()


def test_tokens_are_those_of_dense_attention(engine, expected):
    assert engine.generate(prompts(), greedy(len(LENGTHS))) == expected
    assert all_are_back(engine.pool)


@pytest.mark.skipif(not IS_UPSTREAM, reason="the fork's scheduler runs preempted sequences on")
@pytest.mark.parametrize("engine", [{"num_blocks": 7}], indirect=True)
def test_scarce_blocks_preempt_and_change_no_token(engine, expected, monkeypatch):
    preempted = []
    preempt = type(engine.scheduler).preempt

    def counted(self, seq):
        preempted.append(seq.seq_id)
        preempt(self, seq)

    monkeypatch.setattr(type(engine.scheduler), "preempt", counted)
    # Prompts that grow past their block in the same steps, beside one that holds three.
    picked = [1, 2, 5]
    ids = [prompts()[i] for i in picked]
    extra = prompts([250, 250], seed=5)
    tokens = engine.generate(ids + extra, greedy(len(ids) + len(extra)))
    assert preempted
    assert tokens[: len(picked)] == [expected[i] for i in picked]
    assert all_are_back(engine.pool)


def test_a_prefix_outlives_its_sequence(engine, expected):
    first = prompts()[5]
    assert engine.generate([first], greedy(1)) == [expected[5]]
    before = engine.pool.stats().allocations
    assert engine.generate([first, first], greedy(2)) == [expected[5]] * 2
    # Two full blocks are found again by both; the rest of each takes one block.
    assert engine.pool.stats().allocations - before == 2
    assert all_are_back(engine.pool)


@pytest.mark.parametrize("engine", [{"num_blocks": 8}], indirect=True)
def test_prefixes_are_evicted_when_blocks_are_wanted(engine, expected):
    for seed in range(4):
        engine.generate(prompts([700], seed=seed), greedy(1, 4))
    assert engine.pool.stats().evictions > 0
    assert engine.generate([prompts()[5]], greedy(1)) == [expected[5]]
    figures = engine.pool.prefix_stats()
    assert figures.published == engine.pool.stats().evictable
    assert figures.removals_by["evicted"] > 0


def scaled(k, v, scale):
    return k, v, scale * 0.98


def one_lost(k, v, scale):
    if k.shape[0] > 9:  # a prompt
        k, v = k.clone(), v.clone()
        k[7], v[7] = 0, 0
    return k, v, scale


def two_swapped(k, v, scale):
    if k.shape[0] > 9:  # a prompt
        k = k.clone()
        k[[5, 9]] = k[[9, 5]]
    return k, v, scale


@pytest.mark.parametrize("fault", [scaled, one_lost, two_swapped], ids=lambda f: f.__name__)
def test_a_planted_fault_is_noticed(folder, expected, fault, monkeypatch):
    forward = nano_vllm.Attention.forward

    def faulty(self, q, k, v):
        if self.runtime is None:
            return forward(self, q, k, v)
        sound = self.scale
        k, v, self.scale = fault(k, v, sound)
        try:
            return forward(self, q, k, v)
        finally:
            self.scale = sound

    monkeypatch.setattr(nano_vllm.Attention, "forward", faulty)
    engine = make_engine(folder, 32)
    try:
        assert engine.generate(prompts(), greedy(len(LENGTHS))) != expected
    finally:
        engine.close()


def test_random_lives_keep_the_accounts(folder):
    """The block manager alone, against the promises of the calls."""
    manager = nano_vllm.ForkBlockManager if not IS_UPSTREAM else nano_vllm.UpstreamBlockManager
    from nanovllm.engine.sequence import Sequence

    blocks = manager(12, 4)
    Sequence.block_size, saved = 4, Sequence.block_size
    numbers = random.Random(7)
    try:
        live, shared = [], 0
        for _ in range(4000):
            if live and numbers.random() < 0.3:
                blocks.deallocate(live.pop(numbers.randrange(len(live))))
            elif live and numbers.random() < 0.6:
                seq = live[numbers.randrange(len(live))]
                seq.append_token(numbers.randrange(3))
                if not blocks.can_append(seq):
                    blocks.deallocate(seq)
                    live.remove(seq)
                    continue
                blocks.may_append(seq)
                if IS_UPSTREAM:
                    seq.num_scheduled_tokens = 1
                    blocks.hash_blocks(seq)
                    seq.num_cached_tokens += 1
            else:
                seq = Sequence([numbers.randrange(2) for _ in range(numbers.randrange(1, 18))])
                can = blocks.can_allocate(seq)
                if can is False or (IS_UPSTREAM and can == -1):
                    continue
                blocks.allocate(seq, *([can] if IS_UPSTREAM else []))
                shared += seq.num_cached_tokens > 0
                assert seq.num_cached_tokens < len(seq)
                if IS_UPSTREAM:
                    seq.num_scheduled_tokens = len(seq) - seq.num_cached_tokens
                    blocks.hash_blocks(seq)
                    seq.num_cached_tokens = len(seq)
                live.append(seq)
            content = {}
            for seq in live:
                assert len(seq.block_table) == seq.num_blocks
                for i, block in enumerate(seq.block_table[:-1]):
                    tokens = tuple(seq.token_ids[: 4 * i + 4])
                    assert content.setdefault(block, tokens) == tokens
            blocks.pool.check()
        assert shared > 50 and blocks.pool.stats().evictions > 50
    finally:
        Sequence.block_size = saved


def test_more_than_one_gpu_is_refused(folder):
    from nanovllm.config import Config

    with pytest.raises(ValueError, match="tensor_parallel_size: 2; accepted: 1 with kvarena"):
        Config(str(folder), tensor_parallel_size=2)


def test_install_comes_before_nanovllm(monkeypatch):
    import sys
    import types

    assert nano_vllm.install() is sys.modules["nanovllm"]
    monkeypatch.setitem(sys.modules, "nanovllm.layers.attention", types.ModuleType("x"))
    with pytest.raises(RuntimeError, match="call kvarena.nano_vllm.install"):
        nano_vllm.install()


def test_the_pool_is_registered_memory(engine):
    device = engine.runner.kvarena.device
    assert ("nano-vllm's pool" in device.report()) == device.is_cuda
    assert engine.runner.config.num_kvcache_blocks == engine.pool.stats().num_blocks == 32
