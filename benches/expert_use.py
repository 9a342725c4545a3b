#!/usr/bin/env python3
"""How a synthetic model uses its experts on random tokens, by mlx-lm on the MLX folder.

    pip install "mlx[cpu]" mlx-lm numpy
    benches/expert_use.py FOLDER                        # 128 tokens, what each layer does
    benches/expert_use.py FOLDER --tokens 384 --check   # also: is the cache curve the published one?

Prints for each layer the entropy of expert use as a share of the possible, how many experts the
tokens touched, and how many of a token's experts were the previous token's too. A benchmark whose
routing collapses onto a few experts measures the processor's cache.

Then the share of hits of one least-recently-used cache over all (layer, expert), which reads the
tokens one after the other as decoding does. The first --warm-up tokens fill it and do not count.
--check compares with the curve that `synth --router tuned` is made for and exits with 1 if a point
is off by more than its tolerance.
"""

import argparse
import collections
import pathlib
import random
import sys

import numpy as np

# Share of all experts in the cache -> hits, as published for Qwen3.6-35B (256 experts, 8 used),
# and how far a model may be off, all in percent. The last is the middle of 61 to 65.
PUBLISHED = {8: (52, 2), 11: (56, 2), 16: (63, 2)}
SHARES = (4, 8, 11, 16, 25, 40, 60)


def routing(folder, tokens, chunk=128):
    """Experts [tokens, layers with experts, used], and how many there are in a layer."""
    import mlx.core as mx
    from mlx_lm.models.cache import make_prompt_cache
    from mlx_lm.utils import load_model

    mx.set_default_device(mx.cpu)
    model, _ = load_model(folder)
    inner = getattr(model, "language_model", model).model
    seen = collections.defaultdict(list)

    class Recorded:
        def __init__(self, index, gate, used):
            self.index, self.gate, self.used = index, gate, used

        def __call__(self, x):
            logits = self.gate(x)
            best = mx.argsort(-logits.astype(mx.float32), axis=-1)[..., :self.used]
            seen[self.index].append(np.array(best).reshape(-1, self.used))
            self.experts = logits.shape[-1]
            return logits

    gates = []
    for index, layer in enumerate(inner.layers):
        if hasattr(layer.mlp, "gate"):
            used = getattr(layer.mlp, "top_k", None) or layer.mlp.num_experts_per_tok
            gates.append(Recorded(index, layer.mlp.gate, used))
            layer.mlp["gate"] = gates[-1]
    if not gates:
        sys.exit(f"{folder} has no experts")
    cache = make_prompt_cache(model)
    for start in range(0, len(tokens), chunk):
        mx.eval(model(mx.array([tokens[start:start + chunk]]), cache=cache))
    return np.stack([np.concatenate(seen[gate.index]) for gate in gates], axis=1), gates[0].experts


def hit_rate(chosen, experts, slots, warm_up):
    """Share of hits in a least-recently-used cache of so many experts, in percent."""
    tokens, layers, used = chosen.shape
    cache, hits = collections.OrderedDict(), 0
    order = (chosen + np.arange(layers)[:, None] * experts).reshape(tokens, layers * used)
    for token, row in enumerate(order.tolist()):
        for expert in row:
            if expert in cache:
                cache.move_to_end(expert)
                hits += token >= warm_up
                continue
            if len(cache) >= slots:
                cache.popitem(last=False)
            cache[expert] = None
    return 100 * hits / (used * layers * (tokens - warm_up))


def describe(chosen, experts):
    def kept(layer):
        return np.mean([len(set(x) & set(y)) / len(x) for x, y in zip(layer, layer[1:])])

    for index in range(chosen.shape[1]):
        layer = chosen[:, index]
        share = np.bincount(layer.ravel(), minlength=experts) / layer.size
        entropy = -(share[share > 0] * np.log(share[share > 0])).sum() / np.log(experts)
        print(f"layer {index}: entropy {100 * entropy:.1f} % of the possible, {np.count_nonzero(share)} of {experts} "
              f"experts used, {100 * kept(layer):.1f} % kept from the token before")


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("model", type=pathlib.Path)
    a.add_argument("--tokens", type=int, default=128)
    a.add_argument("--warm-up", type=int, help="by default a quarter of the tokens")
    a.add_argument("--seed", type=int, default=1)
    a.add_argument("--check", action="store_true", help="fail unless the curve is the published one")
    options = a.parse_args()
    warm_up = options.tokens // 4 if options.warm_up is None else options.warm_up
    random.seed(options.seed)
    chosen, experts = routing(options.model, [random.randrange(4096) for _ in range(options.tokens)])
    describe(chosen, experts)
    wrong = False
    print(f"hits of a least-recently-used cache, {options.tokens} tokens without the first {warm_up}:")
    for share in SHARES:
        slots = experts * chosen.shape[1] * share // 100
        rate = hit_rate(chosen, experts, slots, warm_up)
        line = f"{share:3} % of the experts: {rate:.1f} %"
        if share in PUBLISHED:
            expected, tolerance = PUBLISHED[share]
            off = abs(rate - expected) > tolerance
            wrong |= off
            line += f"  (published {expected} ± {tolerance}{', OFF' if off and options.check else ''})"
        print(line)
    sys.exit(options.check and wrong)


if __name__ == "__main__":
    main()
