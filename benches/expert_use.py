#!/usr/bin/env python3
"""How evenly a synthetic model uses its experts, by mlx-lm on the MLX folder.

    pip install "mlx[cpu]" mlx-lm numpy
    benches/expert_use.py FOLDER [--tokens 128]

Prints for each layer the entropy of expert use as a share of the possible, and how many of a
token's experts were the previous token's too. A benchmark whose routing collapses onto a few
experts measures the processor's cache.
"""

import argparse
import pathlib
import random

import mlx.core as mx
import numpy as np
from mlx_lm.utils import load_model


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("model", type=pathlib.Path)
    a.add_argument("--tokens", type=int, default=128)
    options = a.parse_args()
    mx.set_default_device(mx.cpu)
    model, _ = load_model(options.model)
    inner = getattr(model, "language_model", model).model
    seen = {}

    class Recorded:
        def __init__(self, index, gate, used):
            self.index, self.gate, self.used = index, gate, used

        def __call__(self, x):
            logits = self.gate(x)
            best = mx.argsort(-logits.astype(mx.float32), axis=-1)[..., :self.used]
            seen.setdefault(self.index, []).append((np.array(best).reshape(-1, self.used), logits.shape[-1]))
            return logits

    for index, layer in enumerate(inner.layers):
        if hasattr(layer.mlp, "gate"):
            used = getattr(layer.mlp, "top_k", None) or layer.mlp.num_experts_per_tok
            layer.mlp["gate"] = Recorded(index, layer.mlp.gate, used)
    random.seed(1)
    tokens = [random.randrange(4096) for _ in range(options.tokens)]
    mx.eval(model(mx.array([tokens])))
    for index, parts in sorted(seen.items()):
        chosen, experts = np.concatenate([part[0] for part in parts]), parts[0][1]
        share = np.bincount(chosen.ravel(), minlength=experts) / chosen.size
        entropy = -(share[share > 0] * np.log(share[share > 0])).sum() / np.log(experts)
        kept = np.mean([len(set(x) & set(y)) / len(x) for x, y in zip(chosen, chosen[1:])])
        print(f"layer {index}: entropy {100 * entropy:.1f} % of the possible, {np.count_nonzero(share)} of {experts} "
              f"experts used, {100 * kept:.1f} % kept from the token before", flush=True)


if __name__ == "__main__":
    main()
