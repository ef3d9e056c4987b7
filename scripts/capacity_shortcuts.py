#!/usr/bin/env python3
"""How far usual estimates of a model's memory are off: the table of docs/explanation/capacity.md.

usage: scripts/capacity_shortcuts.py [KVARENA]

KVARENA is the command (build/tool/tools/kvarena unless given). Each column is what the shortcut says
by what `kvarena plan` says, in percent more (+) or less (-); a dash where a model has no such number.
"""

import json
import re
import subprocess
import sys

MODELS = ["Qwen2.5-0.5B", "Phi-3-mini-4k-instruct", "Llama-2-7B", "Llama-3.1-8B", "Qwen3-32B",
          "Llama-3.1-70B", "Gemma-2-9B", "Gemma-3-27B", "Mixtral-8x7B-v0.1",
          "Llama-4-Scout-17B-16E", "DeepSeek-V3", "Qwen3.5-27B"]
#: Contexts where 8,192 tokens are not what shows a model's limits.
CONTEXTS = {"Phi-3-mini-4k-instruct": 4096, "Llama-2-7B": 4096, "Llama-4-Scout-17B-16E": 32768}


def off(shortcut, exact):
    """Percent by which a shortcut misses."""
    return f"{100.0 * (shortcut / exact - 1.0):+.0f} %"


def billions_of(name):
    """"Llama-3.1-8B": 8; "Mixtral-8x7B-v0.1": 56; none: None."""
    found = re.search(r"(?:(\d+)x)?(\d+(?:\.\d+)?)B", name)
    return float(found[1] or 1) * float(found[2]) if found else None


def shortcuts(plan):
    """The columns of one model."""
    shape = plan["shape"]
    hidden, layers, vocab = shape["hidden"], shape["layers"], shape["vocab"]
    exact, per_token = plan["parameters"], plan["kv_bytes_per_token"]
    columns = ["-"] * 5
    if exact:
        ends = (1 if shape["tied_embeddings"] else 2) * vocab * hidden
        columns[0] = off(12 * layers * hidden * hidden, exact)
        columns[1] = off(12 * layers * hidden * hidden + ends, exact)
        columns[2] = off(exact + (vocab * hidden if shape["tied_embeddings"] else 0), exact)
        billions = billions_of(plan["model"])
        if billions:
            columns[3] = off(billions * 1e9, exact)
    columns[4] = off(2 * 2 * layers * hidden, per_token)
    columns.append(off(plan["full_bytes_at_context"], plan["model_bytes_at_context"]))
    return columns + [off(0.2 * plan["weights_bytes"], plan["activation_bytes"] + plan["overhead_bytes"])]


def main():
    program = sys.argv[1] if len(sys.argv) > 1 else "build/tool/tools/kvarena"
    print("| model | 12 L h^2 | and embeddings | tied counted twice | name's billions | KV 2 L h "
          "| limits ignored | 20 % of weights |")
    print("| --- |" + " ---: |" * 7)
    for model in MODELS:
        context = str(CONTEXTS.get(model, 8192))
        done = subprocess.run([program, "--no-config", "plan", "--model", model, "--gpu", "4TiB",
                               "--context", context, "-q", "--json", "-"], stdout=subprocess.PIPE, check=True)
        print("| " + " | ".join([model] + shortcuts(json.loads(done.stdout))) + " |")


if __name__ == "__main__":
    main()
