"""generate_batch on kvarena gives the tokens of stock continuous batching and of generate()."""

import copy

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
if not transformers.__version__.startswith("5.23."):
    pytest.skip("continuous batching is for transformers 5.23", allow_module_level=True)

from test_transformers import CONFIGS, model_of, one_lost, prompts, scaled, two_swapped  # noqa: E402
from transformers import ContinuousBatchingConfig, GenerationConfig  # noqa: E402

import kvarena.transformers as ours  # noqa: E402
from kvarena import _batching  # noqa: E402

NEW_TOKENS = 48
LENGTHS = [5, 23, 12, 31, 8, 17]


def inputs():
    return [prompts(1, n, seed=10 + i)[0].tolist() for i, n in enumerate(LENGTHS)]


def generation(**options):
    return GenerationConfig(
        max_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=-1, pad_token_id=0, **options
    )


def settings(**options):
    return ContinuousBatchingConfig(
        **{"max_batch_tokens": 64, "allow_block_sharing": False, "page_size": 16, **options}
    )


def tokens_of(outputs):
    return {name: output.generated_tokens for name, output in outputs.items()}


def run(model, generation_config=None, **options):
    return tokens_of(
        model.generate_batch(
            inputs(),
            generation_config=generation_config or generation(),
            continuous_batching_config=settings(**options),
            progress_bar=False,
        )
    )


@pytest.fixture(scope="module", params=CONFIGS)
def family(request):
    return request.param


def stock(family, cache={}):
    if family not in cache:
        model = model_of(family)
        model.set_attn_implementation("sdpa")
        cache[family] = list(run(model, num_blocks=64).values())
    return cache[family]


def on_kvarena(family, num_blocks, monkeypatch=None):
    model = model_of(family)
    model.set_attn_implementation("sdpa")
    resets = []
    with ours.continuous_batching(model, num_blocks=num_blocks, block_size=4) as batching:
        if monkeypatch is not None:
            offload = _batching.api.OffloadingManager.offload_requests

            def counted(self):
                resets.append(offload(self))
                return resets[-1]

            monkeypatch.setattr(_batching.api.OffloadingManager, "offload_requests", counted)
        tokens = list(run(model).values())
    assert model.config._attn_implementation == "sdpa"
    (cache,) = batching.caches
    assert cache.kv.stats().free == num_blocks and not cache.sequences
    cache.kv.check()
    return tokens, resets


def test_tokens_are_those_of_stock_and_of_generate(family):
    tokens, _ = on_kvarena(family, 256)
    assert tokens == stock(family)
    assert len(set(tokens[1])) >= 30
    model = model_of(family)
    model.set_attn_implementation("sdpa")
    for prompt, got in zip(inputs(), tokens, strict=True):
        ids = torch.tensor([prompt])
        with torch.no_grad():
            alone = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW_TOKENS)
        assert got == alone[0, len(prompt) :].tolist()


def test_scarce_blocks_reset_requests_and_change_no_token(family, monkeypatch):
    tokens, resets = on_kvarena(family, 30, monkeypatch)
    assert any(resets)
    assert tokens == stock(family)


@pytest.mark.parametrize("fault", [scaled, one_lost, two_swapped], ids=lambda f: f.__name__)
def test_a_planted_fault_is_noticed(family, fault, monkeypatch):
    attend = _batching.BatchCache.attend

    def faulty(self, layer, q, k, v, **how):
        k, v, how = fault(k, v, how)
        return attend(self, layer, q, k, v, **how)

    monkeypatch.setattr(_batching.BatchCache, "attend", faulty)
    assert on_kvarena(family, 256)[0] != stock(family)


def test_forked_requests_are_those_of_stock():
    """Several answers to each prompt: greedy ones are equal, and each is that of its prompt."""
    model = model_of("qwen2")
    model.set_attn_implementation("sdpa")
    expected = stock("qwen2")
    several = generation()
    several.num_return_sequences = 3  # the constructor wants sampling for this
    for num_blocks in (512, 60):
        with ours.continuous_batching(model, num_blocks=num_blocks, block_size=4) as batching:
            outputs = run(model, several)
        assert len(outputs) == 3 * len(LENGTHS)
        for i, prompt_tokens in enumerate(expected):
            assert list(outputs.values())[3 * i : 3 * i + 3] == [prompt_tokens] * 3
        assert batching.caches[0].kv.stats().free == num_blocks
        batching.caches[0].kv.check()


def test_cancelled_requests_give_their_blocks_back():
    model = model_of("qwen2")
    model.set_attn_implementation("sdpa")
    expected = stock("qwen2")
    with ours.continuous_batching(model, num_blocks=256, block_size=4) as batching:
        manager = model.init_continuous_batching(
            generation_config=generation(), continuous_batching_config=settings()
        )
        manager.start()
        names = [manager.add_request(ids, streaming=True) for ids in inputs()]
        result = manager.get_result(timeout=60)
        manager.cancel_request(names[3])
        done = {}
        while result is not None:
            if result.is_finished():
                done[result.request_id] = result.generated_tokens
            if len(done) == len(names) - 1:
                break
            result = manager.get_result(timeout=60)
        manager.stop(block=True)
    for name, tokens in zip(names, expected, strict=True):
        if name != names[3]:
            assert done[name] == tokens
    (cache,) = batching.caches
    assert cache.kv.stats().free == 256
    cache.kv.check()


def prompts_of_one_beginning():
    """Chats of one system prompt: 40 tokens that are equal, then a question."""
    system = prompts(1, 40, seed=3)[0].tolist()
    return [system + prompts(1, 6 + i, seed=20 + i)[0].tolist() for i in range(6)]


def batch_of(model, **options):
    return model.generate_batch(
        prompts_of_one_beginning(),
        generation_config=generation(),
        continuous_batching_config=settings(**options),
        progress_bar=False,
    )


def computed_tokens(monkeypatch):
    """Counts the tokens that forwards compute."""
    counts = []
    take = _batching.BatchCache.take_batch

    def counted(self):
        batch = take(self)
        counts.append(sum(tokens for _, tokens in batch))
        return batch

    monkeypatch.setattr(_batching.BatchCache, "take_batch", counted)
    return counts


@pytest.mark.parametrize("num_blocks", [256, 40], ids=["many blocks", "few blocks"])
def test_requests_share_prefixes_and_change_no_token(family, num_blocks, monkeypatch):
    model = model_of(family)
    model.set_attn_implementation("sdpa")
    expected = tokens_of(batch_of(model, num_blocks=64))
    counts = computed_tokens(monkeypatch)
    figures = {}
    for shares in (False, True):
        counts.clear()
        with ours.continuous_batching(model, num_blocks=num_blocks, block_size=4) as batching:
            assert tokens_of(batch_of(model, allow_block_sharing=shares)) == expected
        (cache,) = batching.caches
        figures[shares] = sum(counts)
        found = cache.kv.prefix_stats()
        assert (found.hits > 0) == shares
        assert not cache.sequences and cache.kv.available() == num_blocks
        cache.kv.check()
    assert figures[True] < figures[False] - 40
    assert found.hit_tokens % 4 == 0 and found.registrations > 10


def test_a_wrong_prefix_would_be_noticed(monkeypatch):
    """Requests that were told the same tokens get the same blocks: the comparison above sees it."""
    model = model_of("qwen2")
    model.set_attn_implementation("sdpa")
    expected = tokens_of(batch_of(model, num_blocks=64))
    search = _batching.BatchCache.search_prefix_match

    def stuck(self, request_id, prompt_ids):
        first = self.__dict__.setdefault("first", prompt_ids)
        return search(self, request_id, first[: len(prompt_ids)])

    monkeypatch.setattr(_batching.BatchCache, "search_prefix_match", stuck)
    with ours.continuous_batching(model, num_blocks=256, block_size=4):
        assert tokens_of(batch_of(model, allow_block_sharing=True, max_batch_tokens=47)) != expected


def without_graphs(monkeypatch):
    """Inside a context: no batch is a recorded step."""
    resolve = getattr(_batching.api, _batching.RESOLVE)

    def resolved(**given):
        found = resolve(**given)
        found.use_cuda_graph = (False, False)
        return found

    monkeypatch.setattr(_batching.api, _batching.RESOLVE, resolved)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("num_blocks", [256, 30], ids=["ample", "scarce"])
def test_recorded_steps_give_the_tokens_of_others(family, num_blocks, monkeypatch):
    model = copy.deepcopy(model_of(family)).to("cuda")
    model.set_attn_implementation("sdpa")
    replays = []
    replay = _batching.Replay.replay
    monkeypatch.setattr(
        _batching.Replay, "replay", lambda self: (replays.append(self.rows), replay(self))
    )
    found, counts = {}, {}
    for recorded in (False, True):
        replays.clear()
        with ours.continuous_batching(model, num_blocks=num_blocks, block_size=4) as batching:
            with monkeypatch.context() as patch:
                if not recorded:
                    without_graphs(patch)
                found[recorded] = list(run(model).values())
        counts[recorded] = len(replays)
        (cache,) = batching.caches
        assert cache.kv.stats().free == num_blocks and not cache.sequences
        cache.kv.check()
    assert counts[False] == 0 and counts[True] > NEW_TOKENS / 2
    assert found[True] == found[False]
    assert len(set(found[True][1])) >= 30


def test_what_is_not_supported_is_said(monkeypatch):
    model = model_of("qwen2")
    with ours.continuous_batching(model, num_blocks=64):
        with pytest.raises(Exception, match="cpu_offload_space: 1"):
            model.init_continuous_batching(
                generation_config=generation(),
                continuous_batching_config=settings(cpu_offload_space=1),
            )._create_batch_processor()
    monkeypatch.setattr(transformers, "__version__", "5.17.0")
    with pytest.raises(ValueError, match="version 5.17.0; accepted for continuous batching: 5.23"):
        ours.continuous_batching(model, num_blocks=64)
