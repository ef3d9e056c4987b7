"""generate() on kvarena beside generate() on DynamicCache: the tokens, with all layers.

In float32 the tokens are equal. In bf16 rounding differs. There a first token that differs must be
nearly a tie: the float32 model, with the same weights, gives both nearly the same logit after the
tokens in common, to TIE of the largest logit. The bf16 model has weights with which bf16 is about
as exact as with trained ones (models.build): with those of models.COMMON, rounding alone moves
stock's own logits by more than TIE. The row "logits" is the sharper one: with given tokens, kvarena's
logits are as near to the float32 model's as those of stock.
"""

import copy
import time

import models
import torch
from transformers import DynamicCache

import kvarena.transformers as ours

TIE = 2.0**-6  # of the largest logit
BF16_RANGE = 0.02  # initializer_range of both architectures where none is given
LARGER = 1.1  # kvarena's mean error of logits may be so many times stock's
BLOCKS = 1024
SEEN, DISTINCT = 60, 40  # in float32, of the last tokens of a row so many are different
NOISE = 0.001  # of an assistant's weights


class Case:
    """A call of generate(): its prompts, padded on the left, and its options. With `second` another
    call follows, whose prompt goes on by so many tokens; with `assisted` a model like it drafts."""

    def __init__(self, name, lengths, new_tokens, in_bf16=True, **how):
        self.name, self.lengths, self.new_tokens = name, lengths, new_tokens
        self.repeats, self.second = how.pop("repeats", False), how.pop("second", 0)
        self.assisted, self.assistant = how.pop("assisted", False), None
        self.in_bf16, self.how = in_bf16, {"do_sample": False, **how}

    def inputs(self, config, device):
        ids = torch.zeros(len(self.lengths), max(self.lengths), dtype=torch.long)
        for row, tokens in enumerate(models.prompts(self.lengths, config.vocab_size, seed=3)):
            if self.repeats:
                tokens[-6:] = tokens[2:8]
            ids[row, ids.shape[1] - len(tokens) :] = torch.tensor(tokens)
        return ids.to(device), (ids != 0).long().to(device)

    @torch.no_grad()
    def options(self, model):
        """What generate() gets beside the prompts. An assistant has the weights with a little noise, so
        that some of its tokens are accepted and some are not."""
        if not self.assisted:
            return self.how
        if self.assistant is None:
            self.assistant = copy.deepcopy(model)
            self.assistant.set_attn_implementation("sdpa")
            torch.manual_seed(2)
            for weights in self.assistant.parameters():
                weights.add_(torch.randn_like(weights) * NOISE)
        return {**self.how, "assistant_model": self.assistant}

    @torch.no_grad()
    def tokens(self, model, cache):
        """The new tokens, one row for each prompt; with a second call also what it was given."""
        ids, mask = self.inputs(model.config, model.device)
        how = self.options(model)
        torch.manual_seed(4)

        def go_on(prompt, mask):
            return model.generate(
                prompt,
                attention_mask=mask,
                past_key_values=cache,
                max_new_tokens=self.new_tokens,
                use_cache=True,
                **how,
            )

        out = go_on(ids, mask)
        if self.second:
            turn = [self.second] * len(self.lengths)
            more = torch.tensor(models.prompts(turn, model.config.vocab_size, seed=6))
            out = torch.cat([out, more.to(out.device)], 1)
            out = go_on(out, torch.ones_like(out))
        return out[:, ids.shape[1] :]


def cases_of(config, quick):
    prompt, new = (24, 60) if quick else (96, 64)
    found = [
        Case("greedy", [prompt] * 2, new),
        Case("left padding", [prompt, prompt - 5, prompt - 11], new),
        Case("prompt lookup", [prompt], new, repeats=True, prompt_lookup_num_tokens=3),
        Case("sampled", [prompt] * 2, new, False, do_sample=True, temperature=1.3, top_k=50),
        Case("3 beams", [prompt] * 2, new, False, num_beams=3),
        Case("assisted", [prompt], new, False, assisted=True),
        Case("two turns", [prompt] * 2, new, False, second=prompt // 3),
    ]
    window = getattr(config, "sliding_window", None)
    if window:
        # One prompt is longer than the window; the new tokens of the other one cross it.
        found.append(Case(f"window of {window}", [window + 150, window - new // 2], new))
    return found


def on_stock(model, case, attention):
    model.set_attn_implementation(attention)
    return case.tokens(model, DynamicCache(config=model.config))


def on_kvarena(model, case):
    model.set_attn_implementation("kvarena")
    cache = ours.Cache(model.config, num_blocks=BLOCKS)
    found = case.tokens(model, cache)
    cache.kv.check()
    cache.reset()
    if cache.kv.stats().free != BLOCKS:
        raise AssertionError("blocks did not come back")
    cache.kv.close()
    return found


@torch.no_grad()
def gaps(exact, model, case, row, common, found, expected):
    """Distances of logits after the common tokens, divided by the largest |logit|.

    By the float32 model: between the two tokens, from the best token to kvarena's, and to stock's.
    The last one is the largest error of the logits of stock.
    """
    ids, mask = case.inputs(exact.config, exact.device)
    prefix = torch.cat([ids[row][mask[row] == 1], common]).unsqueeze(0)
    model.set_attn_implementation("sdpa")
    stock = model(prefix, logits_to_keep=1, use_cache=False).logits[0, -1].float()
    exact.set_attn_implementation("eager")
    logits = exact(prefix, logits_to_keep=1, use_cache=False).logits[0, -1]
    a, b, best = logits[found], logits[expected], logits.max()
    distances = [(a - b).abs(), best - a, best - b, (stock - logits).abs().max()]
    return (torch.stack(distances) / logits.abs().max()).tolist()


@torch.no_grad()
def logits_of(model, ids, cache, prompt):
    """Logits of a prompt's last token and of all later ones, each in a forward of its own."""
    spans = [(0, prompt), *((i, i + 1) for i in range(prompt, ids.shape[1]))]
    given = {"past_key_values": cache, "use_cache": True, "logits_to_keep": 1}
    return torch.cat([model(ids[:, a:b], **given).logits[0].float() for a, b in spans])


def compare_logits(report, exact, model, name):
    """The errors of bf16 logits after given tokens, across the window if there is one."""
    window = getattr(model.config, "sliding_window", None)
    prompt = window - 8 if window else 100
    ids = torch.tensor(models.prompts([prompt + 24], model.config.vocab_size, seed=5))
    ids, begin = ids.to(model.device), time.monotonic()
    exact.set_attn_implementation("eager")
    right = logits_of(exact, ids, DynamicCache(config=exact.config), prompt)
    errors = []
    for attention in ("kvarena", "sdpa"):
        model.set_attn_implementation(attention)
        stock = DynamicCache(config=model.config)
        cache = ours.Cache(model.config, num_blocks=BLOCKS) if attention == "kvarena" else stock
        found = logits_of(model, ids, cache, prompt)
        errors.append(float((found - right).norm() / right.norm()))
        del cache
        models.release()
    report.row(
        f"{name} bf16 logits",
        kvarena_error=errors[0],
        stock_error=errors[1],
        seconds=round(time.monotonic() - begin, 1),
        result="ok" if errors[0] <= LARGER * errors[1] else "failed",
    )


def compare(report, exact, model, case, name, dtype):
    attention = "eager" if dtype == "f32" else "sdpa"
    begin = time.monotonic()
    expected, found = on_stock(model, case, attention), on_kvarena(model, case)
    equal, first, worst = 0, None, [None] * 4
    for row, (a, b) in enumerate(zip(found, expected, strict=True)):
        different = (a != b).nonzero()
        if not len(different):
            equal += len(b)
            continue
        at = int(different[0])
        equal += at
        first = at if first is None else min(first, at)
        here = gaps(exact, model, case, row, b[:at], a[at], b[at])
        worst = max(worst, here, key=lambda each: each[0] or 0)
    # The weights for bf16 repeat themselves sooner. There only the first token that differs counts.
    varied = dtype == "bf16" or expected[0, -SEEN:].unique().numel() >= DISTINCT
    good = first is None or (dtype == "bf16" and worst[0] <= TIE)
    report.row(
        f"{name} {dtype} {case.name}",
        equal_tokens=f"{equal} of {expected.numel()}",
        first_difference=first,
        gap=worst[0],
        gap_to_best=worst[1],
        stock_to_best=worst[2],
        stock_error=worst[3],
        seconds=round(time.monotonic() - begin, 1),
        result="ok" if good and varied else "failed",
        note="" if varied else "too few different tokens to compare",
    )


def measure(report, options):
    for name, config in models.configs(options).items():
        for dtype in ("f32", "bf16"):
            model = models.build(
                config, options.device, spread=None if dtype == "f32" else BF16_RANGE
            )
            exact = copy.deepcopy(model).float()
            for case in cases_of(config, options.quick):
                if dtype == "bf16" and not case.in_bf16:
                    continue
                if report.left < 10:
                    report.skip("the part's time is used up", f"{name} {dtype} {case.name}")
                    continue
                compare(report, exact, exact if dtype == "f32" else model, case, name, dtype)
            if report.left > 10 and dtype == "bf16":
                compare_logits(report, exact, model, name)
            del model, exact
            models.release()
