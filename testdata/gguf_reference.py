#!/usr/bin/env python3
"""Make testdata/gguf: the logits that the tiny models of `gguf_models.py` must give.

    python -m venv env && env/bin/pip install torch transformers gguf numpy
    env/bin/python testdata/gguf_reference.py                  # every case
    env/bin/python testdata/gguf_reference.py llama:Q8_0 …     # only these

The reference is transformers in f32, eager attention. It gets what the package `gguf` makes of a file's bytes, which
`gguf_transformers.py` puts back under transformers' names.

As in `make.py`, seeds are tried in order until nothing hangs by a thread: weights·(1 + 5e-4·normal) must leave every
router's choice as it is at every position. `tolerance` is 1e-3 of the logits' deviation for weights that are not
quantised, and for others 5e-3, or three times what a perturbation of 5e-5 does where that is more.
"""

import importlib.metadata
import json
import os
import pathlib
import sys
import tempfile
import warnings

os.environ.setdefault("HF_HUB_OFFLINE", "1")
warnings.filterwarnings("ignore")

import numpy as np
import torch
import transformers as tf

import gguf_models
import seeded
from gguf_transformers import model_of, read, state_of

tf.utils.logging.set_verbosity_error()
FOLDER = pathlib.Path(__file__).resolve().parent / "gguf"
PROMPT = 72  # beyond windows, the original lengths of scaled rotations, and a chunk of 64
POSITIONS = [0, 1, 15, 17, 40, 63, 70, 71]
COLUMNS = [(37 * i + 5) % gguf_models.VOCAB for i in range(16)]
PERTURBATION, DRAWS, SAFETY = 5e-5, 3, 10
PACKAGES = ("transformers", "torch", "gguf")
UNQUANTISED = ("F32", "F16", "BF16")
# Every model in the common plans, and each of the others on one model: half of them on experts.
COMMON = ("F32", "Q8_0", "Q4_K_M", "Q4_0")
EXTRA = {
    "llama": ("F16", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ3_S", "IQ2_XS"),
    "qwen3moe": ("BF16", "IQ4_XS", "IQ3_XXS", "IQ2_XXS", "IQ2_S", "IQ1_S", "IQ1_M", "TQ1_0", "TQ2_0", "NVFP4"),
    "gpt-oss": ("MXFP4",),
}

# ---------------------------------------------------------------- logits


class Routing:
    """The set of experts that each router chooses for each token."""

    def __init__(self, model):
        self.chosen = []
        for module in model.modules():
            if type(module).__name__.endswith(("TopKRouter", "Gemma4TextRouter")):
                module.register_forward_hook(lambda _m, _in, out: self.chosen.append(out[2].sort(-1).values))

    def take(self):
        chosen, self.chosen = self.chosen, []
        return chosen


@torch.no_grad()
def forward(model, routing, prompt):
    logits = model(input_ids=torch.tensor([prompt]), use_cache=False).logits[0].float()
    return logits, routing.take()


@torch.no_grad()
def effect(model, routing, prompt, logits, experts, size, seed):
    """What a perturbation of all weights does to the logits; None if a router chooses otherwise."""
    kept = {name: p.clone() for name, p in model.named_parameters()}
    g = torch.Generator().manual_seed(seed)
    for p in model.parameters():
        p.mul_(1 + size * torch.randn(p.shape, generator=g))
    other, choice = forward(model, routing, prompt)
    for name, p in model.named_parameters():
        p.copy_(kept[name])
    if any((a != b).any() for a, b in zip(experts, choice, strict=True)):
        return None
    return float((other - logits)[POSITIONS].abs().max())


def attempt(path, name, plan, seed):
    """The golden values of one seed, or None."""
    digest = gguf_models.write(path, name, plan, seed)
    family, keys, weights = read(path)
    model = model_of(family, keys, weights)
    model.load_state_dict(state_of(family, keys, weights), strict=True)
    prompt = (seeded.words(seed, "prompt", PROMPT) % np.uint64(gguf_models.VOCAB)).tolist()
    routing = Routing(model)
    logits, experts = forward(model, routing, prompt)
    routers = model.config.num_hidden_layers if "expert_count" in keys else 0
    assert len(experts) == routers, "routers that were not heard"
    draws, effects = range(DRAWS), []
    for size, draw in [(PERTURBATION * SAFETY, 2000 + d) for d in draws] + [(PERTURBATION, 1000 + d) for d in draws]:
        effects.append(effect(model, routing, prompt, logits, experts, size, draw))
        if effects[-1] is None:
            return None
    std = float(logits[POSITIONS].std())
    perturbation = float(np.mean(effects[DRAWS:])) / std
    tolerance = 1e-3 if plan in UNQUANTISED else max(5e-3, 3 * perturbation)
    return dict(
        seed=seed, digest=digest, std=round(std, 6), perturbation=round(perturbation, 6),
        tolerance=round(tolerance, 6), prompt=prompt, logits=logits[POSITIONS][:, COLUMNS].tolist(),
    )  # fmt: skip


def make(name, plan):
    with tempfile.TemporaryDirectory() as scratch:
        for seed in range(1, 1000):
            found = attempt(pathlib.Path(scratch) / "model.gguf", name, plan, seed)
            if found:
                told = ", ".join(f"{key} {found[key]}" for key in ("seed", "std", "perturbation"))
                print(f"{name}:{plan}: {told}", flush=True)
                return found
    raise SystemExit(f"{name}:{plan}: no seed will do")


def text(cases):
    """A case a line for its numbers, a line for each position's logits; seven digits."""
    packages = ", ".join(f"{name} {importlib.metadata.version(name).split('+')[0]}" for name in PACKAGES)
    head = {"reference": packages, "positions": POSITIONS, "columns": COLUMNS}
    parts = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
    for plan, case in cases.items():
        rows = case["logits"]
        rows = ",\n   ".join(f"[{', '.join(f'{float(v):.7g}' for v in row)}]" for row in rows)
        rest = json.dumps({key: value for key, value in case.items() if key != "logits"})
        parts.append(f' "{plan}": {rest[:-1]}, "logits": [\n   {rows}]}}')
    return "{\n" + ",\n".join(parts) + "\n}\n"


def main():
    torch.set_num_threads(1)
    FOLDER.mkdir(exist_ok=True)
    wanted = sys.argv[1:]
    for name in gguf_models.MODELS:
        path, cases = FOLDER / f"{name}.json", {}
        if path.exists():
            cases = {k: v for k, v in json.loads(path.read_text()).items() if isinstance(v, dict)}
        for plan in COMMON + EXTRA.get(name, ()):
            if not wanted or f"{name}:{plan}" in wanted or name in wanted:
                cases[plan] = make(name, plan)
        order = [plan for plan in COMMON + EXTRA.get(name, ()) if plan in cases]
        if cases:
            path.write_text(text({plan: cases[plan] for plan in order}))


if __name__ == "__main__":
    main()
