"""Models with random weights: the architectures of real ones, and tiny ones to try the parts."""

import copy
import math

import torch
import transformers

# initializer_range is large, so that tokens vary and small differences show.
COMMON = {
    "initializer_range": 0.1,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
}
QWEN2_5_05B = {
    "vocab_size": 151936,
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
    "tie_word_embeddings": True,
}
PHI_3_MINI_4K = {
    "vocab_size": 32064,
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "max_position_embeddings": 4096,
    "original_max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "sliding_window": 2047,
    "tie_word_embeddings": False,
}
QWEN3_06B = {
    "vocab_size": 151936,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40960,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
}
TINY = {
    "vocab_size": 4001,
    "hidden_size": 256,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 2048,
}


def configs(options):
    """The configurations that the options ask for, by name."""
    phi, qwen = transformers.Phi3Config, transformers.Qwen2Config
    if options.quick:
        heads = {"num_key_value_heads": 2}
        found = {
            "tiny-qwen2": qwen(**COMMON, **TINY, **heads, tie_word_embeddings=False),
            "tiny-phi3": phi(**COMMON, **TINY, num_key_value_heads=4, sliding_window=100),
        }
    else:
        found = {
            "Qwen2.5-0.5B": qwen(**COMMON, **QWEN2_5_05B),
            "Phi-3-mini-4k": phi(**COMMON, **PHI_3_MINI_4K),
        }
    wanted = options.model or [""]
    return {name: c for name, c in found.items() if any(part in name for part in wanted)}


def build(config, device, dtype=torch.bfloat16, spread=None):
    """A model with random weights on a device. The weights are the same in every call.

    `spread` stands for the config's initializer_range. It makes bf16 as exact as it is with trained
    weights: see `calm`.
    """
    torch.manual_seed(1)
    config = copy.deepcopy(config)
    if spread is not None:
        config.initializer_range = spread
    with torch.device(device):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype)
    if spread is not None and not config.tie_word_embeddings:
        calm(model)
    model = model.to(device).eval()
    model.generation_config.eos_token_id = None
    return model


@torch.no_grad()
def calm(model):
    """Makes embeddings as large as all that the layers add to them.

    The last projection of each attention and each MLP is divided by sqrt(2 x layers), as GPT-2 is
    initialised, and embeddings have a standard deviation of 1. With small embeddings each layer
    adds rounding errors of its own to all before: after 32 layers bf16 logits of stock are then 5 %
    off. With tied embeddings the model would repeat its last token, so those keep theirs.
    """
    model.get_input_embeddings().weight.div_(model.config.initializer_range)
    for name, weight in model.named_parameters():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            weight.div_(math.sqrt(2 * model.config.num_hidden_layers))


def prompts(lengths, vocab_size, seed=0):
    """Random tokens; the first few ids are kept for padding and ends."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(2, vocab_size, (n,), generator=generator).tolist() for n in lengths]


def release():
    """Gives memory back that nothing uses any more."""
    import gc

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
