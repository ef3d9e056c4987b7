"""generate() on kvarena is token for token what it is on DynamicCache, in float32.

The models have random weights with initializer_range 0.1, so that tokens vary and a small fault shows.
Each equality is seen to fail with each of three planted faults.
"""

import copy
import functools

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import transformers  # noqa: E402
from transformers import DynamicCache, LlamaConfig, Phi3Config, Qwen2Config  # noqa: E402

import kvarena  # noqa: E402
import kvarena.transformers as ours  # noqa: E402

NEW_TOKENS = 60
PROMPT = 24

CONFIGS = {
    "qwen2": lambda **c: Qwen2Config(num_key_value_heads=2, **c),
    "llama": lambda **c: LlamaConfig(num_key_value_heads=4, head_dim=48, **c),
    # The window is crossed by the prompt with the first half of the new tokens.
    "phi3": lambda **c: Phi3Config(num_key_value_heads=4, sliding_window=40, **c),
}


WINDOWED = {
    # Both kinds of layers; the window is crossed by the prompt with the first half of the new tokens.
    "gemma3": lambda **c: transformers.Gemma3TextConfig(
        num_key_value_heads=2,
        head_dim=64,
        sliding_window=40,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        query_pre_attn_scalar=16,  # else attention is nearly even, and its scale does not matter
        **c,
    ),
    # The chunk ends within the new tokens.
    "llama4": lambda **c: transformers.Llama4TextConfig(
        num_key_value_heads=2,
        head_dim=64,
        attention_chunk_size=32,
        layer_types=["chunked_attention", "full_attention", "chunked_attention"],
        num_local_experts=2,
        intermediate_size_mlp=128,
        **c,
    ),
    "phi3": CONFIGS["phi3"],
    # Attention sinks beside both kinds of layers.
    "gpt_oss": lambda **c: transformers.GptOssConfig(
        num_key_value_heads=2,
        head_dim=64,
        sliding_window=40,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        num_local_experts=2,
        num_experts_per_tok=1,
        **c,
    ),
}


# The heads of real models: 14 on 2 of 64, 32 of 96 with a window, 32 on 8 of 64.
REAL = {
    "Qwen2.5-0.5B": lambda **c: Qwen2Config(
        **c | {"hidden_size": 896, "num_attention_heads": 14, "num_key_value_heads": 2}
    ),
    "Phi-3-mini": lambda **c: Phi3Config(
        **c
        | {
            "hidden_size": 3072,
            "num_attention_heads": 32,
            "num_key_value_heads": 32,
            "sliding_window": 2047,
            "max_position_embeddings": 4096,
            "original_max_position_embeddings": 4096,
        }
    ),
    "Llama-3.2-1B": lambda **c: LlamaConfig(
        **c | {"hidden_size": 2048, "num_attention_heads": 32, "num_key_value_heads": 8}
    ),
}


@functools.cache
def model_of(family, layers=2):
    torch.manual_seed(1)
    config = (CONFIGS | WINDOWED | REAL)[family](
        vocab_size=4001,
        hidden_size=256,
        intermediate_size=128,
        num_hidden_layers=layers,
        num_attention_heads=4,
        max_position_embeddings=512,
        initializer_range=0.1,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=None,
        tie_word_embeddings=False,
    )
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    return model


@functools.cache
def assistant_of(family):
    """The model with a little noise: some of its tokens are accepted and some are not."""
    assistant = copy.deepcopy(model_of(family))
    assistant.set_attn_implementation("sdpa")
    torch.manual_seed(2)
    with torch.no_grad():
        for weights in assistant.parameters():
            weights.add_(torch.randn_like(weights) * 0.003)
    return assistant


def prompts(rows, tokens=PROMPT, seed=3):
    return torch.randint(2, 4001, (rows, tokens), generator=torch.Generator().manual_seed(seed))


def generate(model, cache, ids, **options):
    torch.manual_seed(4)
    options.setdefault("attention_mask", torch.ones_like(ids))
    options.setdefault("max_new_tokens", NEW_TOKENS)
    return model.generate(ids, past_key_values=cache, use_cache=True, **options)


def greedy(model, cache):
    return generate(model, cache, prompts(2), do_sample=False)


def sampled(model, cache):
    return generate(model, cache, prompts(2), do_sample=True, temperature=1.3, top_k=50)


def beams(model, cache):
    return generate(model, cache, prompts(2), do_sample=False, num_beams=3)


def prompt_lookup(model, cache):
    ids = prompts(1)
    ids[:, -6:] = ids[:, 2:8]  # a prompt that repeats itself
    return generate(model, cache, ids, do_sample=False, prompt_lookup_num_tokens=3)


def assisted(model, cache):
    assistant = assistant_of(model.config.model_type)
    return generate(model, cache, prompts(1), do_sample=False, assistant_model=assistant)


def two_turns(model, cache):
    first = generate(model, cache, prompts(2), do_sample=False)
    ids = torch.cat([first, prompts(2, 7, seed=5)], 1)
    return generate(model, cache, ids, do_sample=False)


def left_padding(model, cache):
    ids = prompts(3)
    mask = torch.ones_like(ids)
    for row, padding in enumerate([0, 5, 11]):
        mask[row, :padding] = 0
    return generate(model, cache, ids.where(mask == 1, 0), attention_mask=mask, do_sample=False)


WAYS = [greedy, sampled, beams, prompt_lookup, assisted, two_turns, left_padding]


@functools.cache
def stock(family, way):
    model = model_of(family)
    model.set_attn_implementation("sdpa")
    with torch.no_grad():
        return way(model, DynamicCache(config=model.config))


def on_kvarena(family, way):
    model = model_of(family)
    model.set_attn_implementation("kvarena")
    cache = ours.Cache(model.config, num_blocks=256, block_size=4)
    with torch.no_grad():
        tokens = way(model, cache)
    cache.kv.check()
    assert len(cache.rows) == cache.kv.stats().sequences
    cache.reset()
    assert cache.kv.stats().free == 256
    return tokens


@pytest.mark.parametrize("way", WAYS, ids=lambda w: w.__name__)
@pytest.mark.parametrize("family", CONFIGS)
def test_tokens_are_those_of_dynamic_cache(family, way):
    expected = stock(family, way)
    assert expected[0, -NEW_TOKENS:].unique().numel() >= 40
    assert torch.equal(on_kvarena(family, way), expected)


@pytest.mark.parametrize("way", [greedy, left_padding], ids=lambda w: w.__name__)
@pytest.mark.parametrize("family", REAL)
def test_real_heads_give_the_tokens_of_dynamic_cache(family, way):
    expected = stock(family, way)
    assert expected[0, -NEW_TOKENS:].unique().numel() >= 40
    assert torch.equal(on_kvarena(family, way), expected)


def test_a_window_of_2047_tokens_is_crossed():
    """The prompt is shorter than Phi-3's window, and the new tokens go beyond it."""
    model = model_of("Phi-3-mini")
    window, ids = model.config.sliding_window, prompts(1, 2020)
    found = []
    with torch.no_grad():
        for attention in ("sdpa", "kvarena"):
            model.set_attn_implementation(attention)
            cache = DynamicCache(config=model.config)
            if attention == "kvarena":
                cache = ours.Cache(model.config, num_blocks=160)
            found.append(generate(model, cache, ids, do_sample=False))
    assert found[0].shape[1] > window + 20
    assert torch.equal(found[0], found[1])
    model.config.sliding_window = 512  # a cache that forgets more has other tokens
    try:
        with torch.no_grad():
            cache = ours.Cache(model.config, num_blocks=160)
            other = generate(model, cache, ids, do_sample=False, max_new_tokens=8)
    finally:
        model.config.sliding_window = window
    assert not torch.equal(other, found[0][:, : other.shape[1]])


def scaled(k, v, how):
    return k, v, {**how, "scale": how["scale"] * 0.98}


# The faults are in the prompt. With drafts behind it, its last tokens are not the last ones of a forward.
PLACE = 14


def one_lost(k, v, how):
    if k.shape[2] < PLACE + 2:
        return k, v, how
    k, v = k.clone(), v.clone()
    k[:, :, PLACE] = 0
    v[:, :, PLACE] = 0
    return k, v, how


def two_swapped(k, v, how):
    if k.shape[2] < PLACE + 2:
        return k, v, how
    order = list(range(k.shape[2]))
    order[PLACE], order[PLACE - 8] = order[PLACE - 8], order[PLACE]
    return k[:, :, order], v[:, :, order], how


@pytest.mark.parametrize("fault", [scaled, one_lost, two_swapped], ids=lambda f: f.__name__)
@pytest.mark.parametrize("way", WAYS, ids=lambda w: w.__name__)
@pytest.mark.parametrize("family", CONFIGS)
def test_a_planted_fault_is_noticed(family, way, fault, monkeypatch):
    attend = ours.Cache.attend

    def faulty(self, layer, q, k, v, mask, **how):
        k, v, how = fault(k, v, how)
        return attend(self, layer, q, k, v, mask, **how)

    monkeypatch.setattr(ours.Cache, "attend", faulty)
    tokens, expected = on_kvarena(family, way), stock(family, way)
    assert tokens.shape != expected.shape or not torch.equal(tokens, expected)


@functools.cache
def stock_of_windows(family, way):
    model = model_of(family, layers=3)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        return way(model, DynamicCache(config=model.config))


def with_retention(family, way):
    """The tokens, and the cache, which keeps only what the model reads."""
    model = model_of(family, layers=3)
    model.set_attn_implementation("kvarena")
    # Each forward of prompt lookup may take back 3 draft tokens.
    cache = ours.Cache(
        model.config, num_blocks=256, block_size=4, retention="model", rollback_tokens=4
    )
    with torch.no_grad():
        return way(model, cache), cache


@pytest.mark.parametrize("way", [greedy, beams, prompt_lookup, two_turns, left_padding])
@pytest.mark.parametrize("family", WINDOWED)
def test_a_cache_that_keeps_what_the_model_reads_gives_the_same_tokens(family, way):
    expected = stock_of_windows(family, way)
    found, cache = with_retention(family, way)
    cache.kv.check()
    assert expected[0, -NEW_TOKENS:].unique().numel() >= 40
    assert torch.equal(expected, found)
    kinds = {group.kind: index for index, group in enumerate(cache.kv.options.groups)}
    limited = kinds.get("window", kinds.get("chunk"))
    for row in cache.rows:
        blocks = sum(
            len(row.group_blocks(index)[1])
            for index, part in enumerate(cache.kv.parts())
            if part.group == limited
        )
        assert blocks <= 13 * sum(part.group == limited for part in cache.kv.parts())
    cache.reset()
    assert cache.kv.pages().of_groups == 0


@pytest.mark.parametrize("fault", [scaled, one_lost, two_swapped], ids=lambda f: f.__name__)
@pytest.mark.parametrize("way", [greedy, beams, prompt_lookup, two_turns, left_padding])
@pytest.mark.parametrize("family", ["gemma3", "llama4"])
def test_a_planted_fault_is_noticed_where_windows_give_up(family, way, fault, monkeypatch):
    attend = ours.Cache.attend

    def faulty(self, layer, q, k, v, mask, **how):
        k, v, how = fault(k, v, how)
        return attend(self, layer, q, k, v, mask, **how)

    monkeypatch.setattr(ours.Cache, "attend", faulty)
    expected = stock_of_windows(family, way)
    try:
        tokens, _ = with_retention(family, way)
    except kvarena.FailedPrecondition:
        return  # other drafts are refused, and a chunk that has ended is gone
    assert tokens.shape != expected.shape or not torch.equal(tokens, expected)


def test_what_a_window_gave_up_cannot_be_had_again():
    model = model_of("gemma3", layers=3)
    model.set_attn_implementation("kvarena")
    cache = ours.Cache(model.config, num_blocks=256, block_size=4, retention="model")
    with torch.no_grad():
        greedy(model, cache)
    with pytest.raises(kvarena.FailedPrecondition):
        cache.crop(-30)
    with pytest.raises(ValueError, match="retention"):
        ours.Cache(model.config, num_blocks=256, retention="window")
    with pytest.raises(ValueError, match="chunked_attention"):
        ours.Cache(model_of("llama4", layers=3).config, num_blocks=256)


def test_left_padding_is_never_stored():
    model = model_of("qwen2")
    model.set_attn_implementation("kvarena")
    cache = ours.Cache(model.config, num_blocks=64, block_size=4)
    ids = prompts(2, 12)
    mask = torch.ones_like(ids)
    mask[1, :9] = 0
    with torch.no_grad():
        model(ids, attention_mask=mask, past_key_values=cache)
    assert [row.length for row in cache.rows] == [12, 3]
    assert cache.get_seq_length() == 12


def test_beams_share_their_prompt():
    model = model_of("qwen2")
    model.set_attn_implementation("kvarena")
    cache = ours.Cache(model.config, num_blocks=64, block_size=4)
    with torch.no_grad():
        model(prompts(1), past_key_values=cache)
    cache.batch_repeat_interleave(3)
    assert cache.batch_size == 3 and cache.kv.stats().referenced == PROMPT // 4
    cache.reorder_cache(torch.tensor([1, 1, 0]))
    assert len({row.id for row in cache.rows}) == 3
    cache.batch_select_indices(torch.tensor([2]))
    assert cache.kv.stats().sequences == 1


def test_exhausted_leaves_the_cache_as_it_was():
    model = model_of("qwen2")
    model.set_attn_implementation("kvarena")
    cache = ours.Cache(model.config, num_blocks=8, block_size=4, max_step_tokens=512)
    with torch.no_grad():
        model(prompts(1), past_key_values=cache)
        with pytest.raises(kvarena.Exhausted) as refused:
            model(prompts(1), past_key_values=cache)
        assert refused.value.explanation.requested == 6
        assert cache.get_seq_length() == PROMPT
        model(prompts(1, 8), past_key_values=cache)
    assert cache.rows[0].length == PROMPT + 8


def test_a_forward_that_fails_half_way_leaves_no_trace(monkeypatch):
    model = model_of("qwen2")
    model.set_attn_implementation("kvarena")
    cache = ours.Cache(model.config, num_blocks=64, block_size=4)
    with torch.no_grad():
        model(prompts(1), past_key_values=cache)
        with monkeypatch.context() as patch:
            patch.setattr(model.model.layers[0].mlp, "forward", None)
            with pytest.raises(TypeError):
                model(prompts(1, 8), past_key_values=cache)
        assert cache.get_seq_length() == PROMPT
        logits = model(prompts(1, 8), past_key_values=cache).logits
        whole = torch.cat([prompts(1), prompts(1, 8)], 1)
        right = model(whole, past_key_values=ours.Cache(model.config, num_blocks=64)).logits
    assert cache.rows[0].length == PROMPT + 8 == cache.get_seq_length()
    assert torch.allclose(logits, right[:, PROMPT:], atol=1e-4)


def test_a_first_batch_that_does_not_fit_leaves_no_rows():
    model = model_of("qwen2")
    model.set_attn_implementation("kvarena")
    cache = ours.Cache(model.config, num_blocks=8, block_size=4, max_step_tokens=512)
    with torch.no_grad():
        with pytest.raises(kvarena.Exhausted):
            model(prompts(3), past_key_values=cache)
        assert not cache.kv.sequences() and not cache.rows
        model(prompts(1), past_key_values=cache)
    assert cache.get_seq_length() == PROMPT


def test_rows_that_are_none_are_refused_and_nothing_is_lost():
    model = model_of("qwen2")
    model.set_attn_implementation("kvarena")
    cache = ours.Cache(model.config, num_blocks=64, block_size=4)
    with torch.no_grad():
        model(prompts(2), past_key_values=cache)
    for rows in ([0, 2], [-1, 0]):
        with pytest.raises(IndexError, match="accepted: 0 to 1"):
            cache.reorder_cache(torch.tensor(rows))
    assert [row.length for row in cache.rows] == [PROMPT, PROMPT]


def test_a_cache_of_another_model_is_refused():
    model, other = model_of("qwen2"), model_of("qwen2", layers=3)
    for served in (model, other):
        served.set_attn_implementation("kvarena")
    with torch.no_grad(), pytest.raises(ValueError, match="for 2 layers and the model has 3"):
        other(prompts(1), past_key_values=ours.Cache(model.config, num_blocks=64))
    with torch.no_grad(), pytest.raises(ValueError, match="for 3 layers and the model has 2"):
        model(prompts(1), past_key_values=ours.Cache(other.config, num_blocks=64))
    with pytest.raises(ValueError, match="num_blocks: -1; accepted: 1 or more"):
        ours.Cache(model.config, num_blocks=-1)


def test_crop_takes_negative_numbers():
    model = model_of("qwen2")
    model.set_attn_implementation("kvarena")
    cache = ours.Cache(model.config, num_blocks=64)
    with torch.no_grad():
        model(prompts(1), past_key_values=cache)
    cache.crop(-5)
    cache.crop(0)
    assert cache.rows[0].length == PROMPT - 5 == cache.get_seq_length()
    with pytest.raises(ValueError, match="tokens_to_remove: 3"):
        cache.crop(3)


def forward(model, cache=None, **options):
    with torch.no_grad():
        return model(prompts(2), past_key_values=cache, **options)


def test_attention_and_cache_need_each_other():
    model = model_of("qwen2")
    model.set_attn_implementation("kvarena")
    with pytest.raises(ValueError, match="past_key_values is no kvarena cache"):
        forward(model, use_cache=False)
    with pytest.raises(ValueError, match="past_key_values is no kvarena cache"):
        forward(model, DynamicCache(config=model.config))
    model.set_attn_implementation("sdpa")
    with pytest.raises(ValueError, match=r'attention is "sdpa".*set_attn_implementation'):
        forward(model, ours.Cache(model.config, num_blocks=64))
    stranger = ours.Cache(copy.deepcopy(model.config), num_blocks=64)
    stranger.shape.config._attn_implementation = "kvarena"
    with pytest.raises(ValueError, match="layer 1 comes after layer -1"):
        forward(model, stranger)


@pytest.mark.parametrize(
    ("mask", "text"),
    [
        (torch.tensor([[1] * 20 + [0] * 4] * 2), "padding behind tokens"),
        (torch.ones(2, 1, PROMPT, PROMPT, dtype=torch.bool), r"shape \[2, 1, 24, 24\]"),
    ],
)
def test_other_masks_are_refused(mask, text):
    model = model_of("qwen2")
    model.set_attn_implementation("kvarena")
    cache = ours.Cache(model.config, num_blocks=64)
    with pytest.raises(ValueError, match=text):
        forward(model, cache, attention_mask=mask)
    forward(model, cache)


def test_another_batch_and_other_padding_are_refused():
    model = model_of("qwen2")
    model.set_attn_implementation("kvarena")
    cache = ours.Cache(model.config, num_blocks=64)
    forward(model, cache)
    with pytest.raises(ValueError, match="holds 2 rows and the batch has 1"):
        model(prompts(1), past_key_values=cache)
    mask = torch.ones(2, PROMPT + 1, dtype=torch.long)
    mask[1, :3] = 0
    with pytest.raises(ValueError, match="does not continue"), torch.no_grad():
        model(prompts(2, 1), attention_mask=mask, past_key_values=cache)


def test_models_that_a_cache_cannot_hold_are_refused():
    chunked = LlamaConfig(num_hidden_layers=2)
    chunked.layer_types = ["chunked_attention", "full_attention"]
    with pytest.raises(ValueError, match="chunked_attention; accepted: layers of full or sliding"):
        ours.Cache(chunked, num_blocks=8)
    with pytest.raises(ValueError, match="share or compress K and V"):
        ours.Cache(transformers.DeepseekV3Config(), num_blocks=8)


def test_windows_of_several_sizes_are_refused():
    class Config:
        model_type, num_hidden_layers, num_attention_heads, hidden_size = "listed", 3, 4, 256
        sliding_window = [40, None, 40]

        def get_text_config(self, decoder):
            return self

    shape = ours.ModelShape(Config(), "model")
    assert (shape.window, shape.kinds) == (40, ["window", "full", "window"])
    for several in ([40, None, 20], [40, 40]):
        Config.sliding_window = several
        with pytest.raises(ValueError, match="several sizes"):
            ours.ModelShape(Config(), "model")


def test_gradients_are_refused():
    model = model_of("qwen2")
    model.set_attn_implementation("kvarena")
    with pytest.raises(ValueError, match="key: a tensor that requires grad"):
        model(prompts(1), past_key_values=ours.Cache(model.config, num_blocks=64))
