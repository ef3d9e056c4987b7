#!/usr/bin/env python3
"""How exact logits over latent_fp8 are with up to 32 columns: figures of docs/benchmarks.md, "K as e4m3".

usage: scripts/model_fp8_sums.py

A model of the matrix units, not a measurement: the 32 products of an instruction and the sum so far are
cut to 14 bits of the largest one before they are added. Queries are random bf16, K is random e4m3 with a
scale for each run of 128 dims. A row of the output is a factor of K, and for it: the largest logit, the
largest error of a logit by the sums, its root mean square, that of rounding K to e4m3 before, the largest
error of a log-sum-exp, and the error of the outputs by their norm. Needs numpy; takes half a minute.
"""

import numpy as np

TOKENS, COLUMNS, RUN, STEP, BITS = 3000, 32, 128, 32, 14


def to_e4m3(x):
    """Rounds to e4m3."""
    exponent = np.floor(np.log2(np.maximum(np.abs(x), 2.0**-6)))
    step = 2.0 ** (exponent - 3)
    return np.sign(x) * np.minimum(np.abs(np.round(x / step) * step), 448)


def add_products(total, key, query):
    """Adds an instruction's products: [tokens, 32] by [columns, 32]."""
    terms = np.concatenate([key[:, None, :] * query[None, :, :], total[:, :, None]], axis=2)
    largest = np.maximum(np.abs(terms).max(axis=2, keepdims=True), 2.0**-100)
    unit = 2.0 ** (np.floor(np.log2(largest)) + 1 - BITS)
    return (np.trunc(terms / unit) * unit).sum(axis=2)


def softmax(logits, value):
    """Returns the log-sum-exps and the outputs of all columns."""
    weights = np.exp(logits - logits.max(axis=0))
    return logits.max(axis=0) + np.log(weights.sum(axis=0)), (weights / weights.sum(axis=0)).T @ value


def row(random, factor):
    query = random.standard_normal((COLUMNS, 576)).astype(np.float32)
    query = (query.view(np.uint32) & 0xFFFF0000).view(np.float32).astype(float)  # bf16
    given = random.standard_normal((TOKENS, 576)) * factor
    power = 2.0 ** (np.floor(np.log2(np.abs(query).max(axis=1, keepdims=True))) - 7)
    large = to_e4m3(query / power)
    small = to_e4m3(query / power - large)
    key = given.copy()
    sums = np.zeros((TOKENS, COLUMNS))
    for run in range(0, 512, RUN):
        scale = np.abs(given[:, run : run + RUN]).max(axis=1, keepdims=True) / 448
        its = to_e4m3(given[:, run : run + RUN] / scale)
        key[:, run : run + RUN] = its * scale
        total = np.zeros((TOKENS, COLUMNS))
        for part in (large, small):
            for step in range(0, RUN, STEP):
                total = add_products(total, its[:, step : step + STEP], part[:, run + step : run + step + STEP])
        sums += total * scale * power.T
    sums += key[:, 512:] @ query[:, 512:].T  # positional dims: bf16, in f32
    logits, exact, unrounded = sums / 24, key @ query.T / 24, given @ query.T / 24
    lse, out = softmax(logits, key[:, :512])
    exact_lse, exact_out = softmax(exact, key[:, :512])
    rms = lambda x: np.sqrt((x * x).mean())
    return (np.abs(exact).max(), np.abs(logits - exact).max(), rms(logits - exact), rms(exact - unrounded),
            np.abs(lse - exact_lse).max(), np.linalg.norm(out - exact_out) / np.linalg.norm(exact_out))


def main():
    random = np.random.default_rng(1)
    print("factor  largest logit  error at most  rms      rms of rounding K  log-sum-exp  outputs")
    for factor in (1, 16, 64):
        print("{:6}  {:13.1f}  {:13.2g}  {:7.2g}  {:17.2g}  {:11.2g}  {:7.2g}".format(factor, *row(random, factor)))


if __name__ == "__main__":
    main()
