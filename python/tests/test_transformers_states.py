"""Models with recurrent layers: generate() on kvarena is token for token what it is on DynamicCache."""

import copy
import functools

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import transformers  # noqa: E402
from transformers import DynamicCache  # noqa: E402

import kvarena  # noqa: E402
import kvarena.transformers as ours  # noqa: E402
from kvarena._states import States  # noqa: E402

NEW_TOKENS = 30
PROMPT = 24
VOCABULARY = 401

MAMBA2 = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_n_groups": 2}
CONFIGS = {
    # Three layers with a gated delta rule, and one with attention.
    "qwen3_next": lambda **c: transformers.Qwen3NextConfig(
        num_key_value_heads=2,
        head_dim=32,
        linear_num_value_heads=4,
        linear_num_key_heads=2,
        linear_key_head_dim=16,
        linear_value_head_dim=16,
        num_experts=2,
        num_experts_per_tok=1,
        moe_intermediate_size=32,
        shared_expert_intermediate_size=32,
        **c,
    ),
    # The last layers are recurrent.
    "granite": lambda **c: transformers.GraniteMoeHybridConfig(
        num_key_value_heads=2,
        mamba_chunk_size=8,
        layer_types=["linear_attention", "full_attention", "linear_attention", "linear_attention"],
        num_local_experts=2,
        num_experts_per_tok=1,
        shared_intermediate_size=32,
        **MAMBA2,
        **c,
    ),
    # A layer keeps nothing.
    "nemotron": lambda **c: transformers.NemotronHConfig(
        num_key_value_heads=2,
        head_dim=16,
        mamba_num_heads=8,
        mamba_head_dim=16,
        ssm_state_size=16,
        n_groups=2,
        chunk_size=8,
        layers_block_type=["linear_attention", "full_attention", "mlp", "linear_attention"],
        **c,
    ),
    # The states are convolutions alone.
    "lfm2": lambda **c: transformers.Lfm2Config(
        num_key_value_heads=2, layer_types=["conv", "full_attention", "conv", "conv"], **c
    ),
    # No layer attends.
    "mamba2": lambda **c: transformers.Mamba2Config(
        num_heads=8, head_dim=16, state_size=16, n_groups=2, chunk_size=8, **c
    ),
    "mamba": lambda **c: transformers.MambaConfig(state_size=8, **c),
}


@functools.cache
def model_of(family):
    torch.manual_seed(1)
    config = CONFIGS[family](
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=4,
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


def cache_of(model, **options):
    if any(kind == "full_attention" for kind in model.config.layer_types):
        model.set_attn_implementation("kvarena")
    return ours.Cache(model.config, **{"num_blocks": 256, "block_size": 4} | options)


def argument(model):
    """transformers' name of the cache."""
    return "cache_params" if "Mamba" in type(model).__name__ else "past_key_values"


def prompts(rows, tokens=PROMPT, seed=3):
    return torch.randint(
        2, VOCABULARY, (rows, tokens), generator=torch.Generator().manual_seed(seed)
    )


def generate(model, cache, ids, attention_mask=None, **options):
    mask = torch.ones_like(ids) if attention_mask is None else attention_mask
    options |= {argument(model): cache, "attention_mask": mask.to(model.device)}
    with torch.no_grad():
        tokens = model.generate(
            ids.to(model.device), max_new_tokens=NEW_TOKENS, do_sample=False, **options
        )
    return tokens.cpu()


def greedy(model, cache):
    return generate(model, cache, prompts(2))


def beams(model, cache):
    return generate(model, cache, prompts(2), num_beams=3)


def padded(rows):
    ids = prompts(rows)
    mask = torch.ones_like(ids)
    for row, padding in enumerate([0, 5, 11][:rows]):
        mask[row, :padding] = 0
    return ids.where(mask == 1, 0), mask


def left_padding(model, cache):
    ids, mask = padded(3)
    return generate(model, cache, ids, attention_mask=mask)


def two_turns(model, cache):
    """The second turn brings several tokens, and there is padding before the first."""
    ids, mask = padded(2)
    first = generate(model, cache, ids, attention_mask=mask)
    ids = torch.cat([first, prompts(2, 7, seed=5)], 1)
    mask = torch.cat([mask, mask.new_ones(2, ids.shape[1] - PROMPT)], 1)
    return generate(model, cache, ids, attention_mask=mask)


def in_pieces(model, cache):
    """A row has no token in the first forward."""
    ids, mask = padded(3)
    return generate(model, cache, ids, attention_mask=mask, prefill_chunk_size=8)


ATTENDING = [greedy, beams, left_padding, two_turns, in_pieces]
CASES = [
    *[("qwen3_next", way) for way in ATTENDING],
    *[("granite", way) for way in ATTENDING],
    ("nemotron", two_turns),
    ("lfm2", beams),
    ("lfm2", two_turns),
    *[("mamba2", way) for way in [greedy, beams, left_padding]],
    ("mamba", greedy),
]


@functools.cache
def stock(family, way):
    model = model_of(family)
    model.set_attn_implementation("eager")
    return way(model, DynamicCache(config=model.config))


@pytest.mark.parametrize(("family", "way"), CASES, ids=lambda c: getattr(c, "__name__", c))
def test_tokens_are_those_of_dynamic_cache(family, way):
    expected = stock(family, way)
    assert expected[0, -NEW_TOKENS:].unique().numel() >= 15
    model = model_of(family)
    cache = cache_of(model)
    assert torch.equal(way(model, cache), expected)
    cache.settle()
    cache.kv.check()
    states = [
        part for part in cache.kv.parts() if cache.kv.options.groups[part.group].kind == "state"
    ]
    assert states and all(part.referenced > 0 for part in states)
    assert len(cache.rows) == cache.kv.stats().sequences
    cache.reset()
    assert cache.kv.pages().of_groups == 0
    assert torch.equal(way(model, cache), expected)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU")
@pytest.mark.parametrize("way", [greedy, beams, two_turns], ids=lambda w: w.__name__)
@pytest.mark.parametrize("family", ["qwen3_next", "granite", "mamba2"])
def test_tokens_on_a_gpu_are_those_of_dynamic_cache(family, way):
    if not kvarena.has_cuda():
        pytest.skip("kvarena was built without CUDA")
    model = copy.deepcopy(model_of(family)).to("cuda")
    model.set_attn_implementation("eager")
    expected = way(model, DynamicCache(config=model.config))
    cache = cache_of(model)
    assert torch.equal(way(model, cache), expected)
    cache.reset()
    cache.kv.synchronize()
    assert cache.kv.pages().of_groups == 0


def nothing(self, *args):
    pass


FAULTS = {
    "rows_stay": ("pick", nothing, beams),
    "zeros_are_read": (
        "read",
        lambda self, layer: [
            plane.new_zeros(len(self.present), *plane.shape[1:]) for plane in self.views[layer][1]
        ],
        greedy,
    ),
    "a_layer_is_not_written": (
        "write",
        lambda self, layer, tensors: layer == 2 or WRITE(self, layer, tensors),
        greedy,
    ),
    "an_empty_row_reads_a_slot": ("end", lambda self, rows: END(self, rows[:1]), in_pieces),
}
WRITE, END = States.write, States.end


@pytest.mark.parametrize(
    ("family", "fault"), [("qwen3_next", fault) for fault in FAULTS] + [("granite", "rows_stay")]
)
def test_a_planted_fault_is_noticed(family, fault, monkeypatch):
    name, planted, way = FAULTS[fault]
    monkeypatch.setattr(States, name, planted)
    model = model_of(family)
    try:
        assert not torch.equal(way(model, cache_of(model)), stock(family, way))
    except IndexError:
        pass  # a slot of no row


def forward(model, cache, ids):
    with torch.no_grad():
        return model(ids, **{argument(model): cache}).logits


def test_rows_that_fork_share_a_state():
    model = model_of("granite")
    cache = cache_of(model)
    forward(model, cache, prompts(1))
    cache.batch_repeat_interleave(3)
    used = [part.referenced for part in cache.kv.parts()]
    assert len(cache.rows) == 3 and used[1:] == [1] * len(used[1:])
    forward(model, cache, prompts(3, 1))
    cache.settle()
    assert [part.referenced for part in cache.kv.parts()][1:] == [3] * len(used[1:])
    cache.batch_select_indices(torch.tensor([2]))
    assert cache.kv.stats().sequences == 1


@pytest.mark.parametrize("layer", range(4))
@pytest.mark.parametrize("family", ["qwen3_next", "granite", "mamba2"])
def test_a_forward_that_fails_leaves_no_trace(family, layer, monkeypatch):
    model = model_of(family)
    cache = cache_of(model)
    whole = torch.cat([prompts(2), prompts(2, 8, seed=9)], 1)
    expected = forward(model, cache_of(model), whole)[:, -8:]

    def fail(ids):
        # In the last layer in front of the attention or the recurrence, in others behind it.
        names = ("in_proj", "q_proj") if layer == 3 else ("out_proj", "o_proj")
        parts = backbone_of(model).layers[layer].named_modules()
        part = next(part for name, part in parts if name.endswith(names))
        with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="planted"):
            patch.setattr(part, "forward", raise_planted)
            forward(model, cache, ids)

    fail(whole)
    cache.reset()
    assert cache.kv is None or cache.kv.pages().of_groups == 0
    forward(model, cache, whole[:, :PROMPT])
    fail(whole[:, PROMPT:])
    assert cache.has_previous_state() and cache.seen == PROMPT
    assert torch.allclose(forward(model, cache, whole[:, PROMPT:]), expected, atol=1e-4)


def backbone_of(model):
    return model.model if hasattr(model, "model") else model.backbone


def raise_planted(*args, **named):
    raise RuntimeError("planted")


def test_exhausted_leaves_the_cache_as_it_was():
    model = model_of("qwen3_next")
    cache = cache_of(model, num_blocks=14)
    first = forward(model, cache, prompts(1))
    free = cache.kv.pages().free
    with pytest.raises(kvarena.Exhausted):
        forward(model, cache, prompts(1, 200))
    cache.settle()
    assert cache.kv.pages().free == free
    assert cache.get_seq_length() == PROMPT == cache.rows[0].length
    following = first[:, -1:].argmax(2)
    right = forward(model, cache_of(model), torch.cat([prompts(1), following], 1))
    assert torch.allclose(forward(model, cache, following), right[:, -1:], atol=1e-4)


def test_states_are_taken_back_all_or_not_at_all():
    model = model_of("qwen3_next")
    cache = cache_of(model)
    first = forward(model, cache, prompts(2))
    cache.crop(0)
    with pytest.raises(ValueError, match="tokens_to_remove: -3; accepted: 0, or all -24"):
        cache.crop(-3)
    assert not cache.is_croppable
    cache.crop(-PROMPT)
    assert cache.get_seq_length() == 0
    assert torch.equal(forward(model, cache, prompts(2)), first)
    with pytest.raises(ValueError, match="stateful|recurrent"):
        generate(model, cache, prompts(1), prompt_lookup_num_tokens=3)
    model = model_of("lfm2")
    with pytest.raises(ValueError, match="cannot be taken back; accepted: generate"):
        generate(model, cache_of(model), prompts(1), prompt_lookup_num_tokens=3)


def test_a_forward_counts_when_the_cache_is_used_again():
    model = model_of("granite")
    cache = cache_of(model)
    forward(model, cache, prompts(2))
    assert cache.step is not None
    assert cache.get_seq_length() == PROMPT
    assert cache.step is None and cache.has_previous_state()


def test_models_whose_states_a_cache_cannot_hold_are_refused():
    hybrid = transformers.FalconH1Config(num_hidden_layers=2)
    with pytest.raises(ValueError, match=r"falcon_h1 has hybrid; accepted: .*DynamicCache"):
        ours.Cache(hybrid, num_blocks=8)
    config = model_of("lfm2").config
    several = type(config)(**config.to_dict())
    several.number_of_conv_states = 3
    with pytest.raises(ValueError, match="several states in a layer"):
        ours.Cache(several, num_blocks=8)
    windows = type(config)(**config.to_dict())
    windows.layer_types, windows.sliding_window = ["conv", "sliding_attention", "conv", "conv"], 8
    with pytest.raises(ValueError, match='sliding_attention; .*retention="model"'):
        ours.Cache(windows, num_blocks=8)
    assert ours.Cache(windows, num_blocks=8, retention="model").shape.window == 8


def test_an_attention_layer_in_front_is_refused_at_the_first_call():
    config = CONFIGS["lfm2"](hidden_size=64, num_attention_heads=4, num_hidden_layers=4)
    config.layer_types = ["full_attention", "conv", "conv", "conv"]
    config.vocab_size = VOCABULARY
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with pytest.raises(ValueError, match="lfm2 has an attention layer before the first recurrent"):
        forward(model, cache_of(model), prompts(1))


def test_options_that_states_cannot_have_are_refused():
    model = model_of("mamba2")
    with pytest.raises(ValueError, match="checkpoint_every_tokens: 64; accepted: -1"):
        cache = cache_of(model, checkpoint_every_tokens=64)
        forward(model, cache, prompts(1))
        cache.settle()
    model = model_of("qwen3_next")
    cache = cache_of(model)
    model.set_attn_implementation("eager")
    with pytest.raises(ValueError, match='attention is "eager".*set_attn_implementation'):
        forward(model, cache, prompts(1))
    with pytest.raises(ValueError, match="requires grad in layer 0; accepted: inference"):
        model_of("mamba2")(prompts(1), cache_params=cache_of(model_of("mamba2")))


def test_continuous_batching_refuses_recurrent_layers():
    if not transformers.__version__.startswith("5.23."):
        pytest.skip("continuous batching is for transformers 5.23")
    context = ours.continuous_batching(model_of("qwen3_next"), num_blocks=8)
    with pytest.raises(ValueError, match="qwen3_next has recurrent layers; accepted"), context:
        pass
