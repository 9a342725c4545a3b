#!/usr/bin/env python3
"""Make the tiny golden models under testdata/models: checkpoints and the logits they must give.

    python -m venv env && env/bin/pip install "mlx[cpu]" mlx-lm torch transformers safetensors numpy
    env/bin/python testdata/make.py                # every case (three minutes on one free core)
    env/bin/python testdata/make.py llama-4bit …   # only these; both rewrite the table in README.md

A case is one model type in one format, e.g. `qwen3_moe-4bit`. For each:

1. `tiny.py` builds the architecture with transformers (vocabulary 256, hidden 96 or 128) and saves it. Unquantized
   cases are what `save_pretrained` writes. Quantized ones are what `mlx_lm.convert` writes.
2. `seeded.py` keeps the layout of what was saved and fills it from a seed. Only how that is done is kept
   (`weights.txt`): crates/golden makes the same bytes for the tests.
3. The reference is transformers in f32, eager attention, on the saved weights: quantized tensors are
   dequantized in f32 and put back under transformers' names. mlx-lm runs the same f32 weights as a second
   opinion; the largest difference of the two is kept as `mlx_difference`.
4. Three draws of weights·(1 + 5e-5·normal) say how much rounding the network amplifies. `perturbation` is the
   mean over the draws of max|Δlogit| / std(logits); `tolerance` follows from it.
5. Seeds are tried in order until nothing hangs by a thread. Under ten times that perturbation (5e-4) every token
   must still choose the same experts, and the same next token; and at every greedy step the best logit must lead
   by more than twice the tolerance. So any program within the tolerance has the same greedy tokens.

Everything is deterministic for given package versions; another version of a package may settle on other seeds.
"""

import contextlib
import importlib.metadata
import io
import json
import os
import pathlib
import shutil
import sys
import tempfile
import time
import warnings

os.environ.setdefault("HF_HUB_OFFLINE", "1")
warnings.filterwarnings("ignore")

import mlx.core as mx
import mlx_lm.utils
import numpy as np
import torch
import transformers
from mlx_lm.convert import convert
from safetensors import safe_open

import seeded
import tiny

transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

HERE = pathlib.Path(__file__).resolve().parent
MODELS = HERE / "models"

PROMPT, GREEDY = 150, 24  # neither a multiple of 8 nor of 64
POSITIONS = sorted({*range(0, PROMPT, 8), *range(PROMPT - 16, PROMPT)})
PERTURBATION, DRAWS, SAFETY = 5e-5, 3, 10
MIN_MARGIN = 0.02  # of the logits' standard deviation
MIN_DISTINCT = 10  # different tokens among the greedy ones: no case that only repeats itself

# The arguments of `mlx_lm.convert`. Scales (and all that stays unquantized) take `dtype`.
QUANTISED = {
    "4bit": dict(q_bits=4, q_group_size=64, dtype="bfloat16"),
    "8bit": dict(q_bits=8, q_group_size=32, dtype="float16"),
    "mixed": dict(q_bits=4, q_group_size=64, quant_predicate="mixed_4_6", dtype="bfloat16"),
    "mxfp4": dict(q_mode="mxfp4", dtype="bfloat16"),
    "2bit": dict(q_bits=2, q_group_size=64, dtype="bfloat16"),
    "3bit": dict(q_bits=3, q_group_size=64, dtype="bfloat16"),
    "5bit": dict(q_bits=5, q_group_size=64, dtype="float16"),
    "6bit": dict(q_bits=6, q_group_size=64, dtype="bfloat16"),
    "4bit-g32-f32": dict(q_bits=4, q_group_size=32, dtype="float32"),
    "4bit-g128": dict(q_bits=4, q_group_size=128, dtype="bfloat16"),
    "8bit-g64": dict(q_bits=8, q_group_size=64, dtype="bfloat16"),
    "mxfp8": dict(q_mode="mxfp8", dtype="bfloat16"),
    "nvfp4": dict(q_mode="nvfp4", dtype="bfloat16"),
    # Of the published gpt-oss: its experts stay mxfp4.
    "mxfp4-q8": dict(q_bits=8, q_group_size=64, dtype="bfloat16"),
}
MATRIX = [
    (t, f) for t in tiny.TYPES if t not in tiny.MODEL_TYPE for f in ("f32", "4bit", "8bit", "mixed", "mxfp4")
]
# One model each for the rest: half of the formats on a dense model, half on experts.
EXTRA = [
    ("llama", "2bit"), ("llama", "5bit"), ("llama", "4bit-g32-f32"), ("llama", "4bit-g128"), ("llama", "8bit-g64"),
    ("llama", "6bit"), ("llama", "mxfp8"), ("llama", "bf16"),
    ("qwen3_moe", "3bit"), ("qwen3_moe", "nvfp4"), ("qwen3_moe", "bf16"),
    ("qwen3_5_moe", "vl-bf16"), ("gemma4", "vl-bf16"),
    ("gemma4_dense", "f32"), ("gemma4_dense", "4bit"),
    ("gemma4_e", "f32"), ("gemma4_e", "4bit"), ("gemma4_e", "mixed"), ("gemma4_e", "mxfp4"),
    ("gpt_oss", "published"), ("gpt_oss", "mxfp4-q8"),
]  # fmt: skip
SHARDED = ("qwen3_moe-4bit", "qwen3_moe-4bit-sharded")  # the first, cut in two files


# ---------------------------------------------------------------- the reference


class Routing:
    """Records, while a transformers model runs, the set of experts each router chooses for each token."""

    def __init__(self, model):
        self.chosen = []
        for module in model.modules():
            if type(module).__name__.endswith(("TopKRouter", "Gemma4TextRouter")):
                module.register_forward_hook(lambda _m, _in, out: self.chosen.append(out[2].sort(-1).values))

    def take(self):
        chosen, self.chosen = self.chosen, []
        return chosen


@torch.no_grad()
def forward(model, routing, tokens):
    """Logits and expert choices for all positions of `tokens`."""
    routing.take()
    logits = model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0]
    return logits.float(), routing.take()


@torch.no_grad()
def greedy(model, prompt, count):
    """The `count` tokens after the prompt, through transformers' cache."""
    tokens, cache, step = [], None, torch.tensor([prompt])
    for _ in range(count):
        out = model(input_ids=step, past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        tokens.append(int(out.logits[0, -1].argmax()))
        step = torch.tensor([[tokens[-1]]])
    return tokens


@torch.no_grad()
def perturbed(model, routing, tokens, size, seed):
    """`forward` with every weight multiplied by 1 + size·normal; the weights are put back."""
    kept = {name: p.clone() for name, p in model.named_parameters()}
    g = torch.Generator().manual_seed(seed)
    for p in model.parameters():
        p.mul_(1 + size * torch.randn(p.shape, generator=g))
    out = forward(model, routing, tokens)
    for name, p in model.named_parameters():
        p.copy_(kept[name])
    return out


def judge(model, prompt, count, quantised):
    """The golden values of a model, or the reason (a word) why this seed will not do."""
    routing = Routing(model)
    new = greedy(model, prompt, count)
    if len(set(new)) < MIN_DISTINCT:
        return "repeats"
    tokens = prompt + new[:-1]
    logits, experts = forward(model, routing, tokens)
    tail = logits[PROMPT - 1 :]
    if tail.argmax(-1).tolist() != new:
        return "cache"  # a near-tie, or a bug in the cached path
    std = float(logits[POSITIONS].std())
    best = tail.topk(2).values
    margin = float((best[:, 0] - best[:, 1]).min()) / std
    if margin < MIN_MARGIN:
        return "margin"

    def survives(size, seed):
        other, choice = perturbed(model, routing, tokens, size, seed)
        if any((a != b).any() for a, b in zip(experts, choice, strict=True)):
            return None
        if other[PROMPT - 1 :].argmax(-1).tolist() != new:
            return None
        return float((other - logits)[POSITIONS].abs().max()) / std

    effect = [survives(PERTURBATION, 1000 + d) for d in range(DRAWS)]
    effect += [survives(PERTURBATION * SAFETY, 2000 + d) for d in range(DRAWS)]
    if None in effect:
        return "routing" if experts else "perturbed"
    perturbation = float(np.mean(effect[:DRAWS]))
    tolerance = max(5e-3, 3 * perturbation) if quantised else 1e-3
    if margin < 2 * tolerance:
        return "margin"
    return dict(
        logits=logits[POSITIONS].numpy(), all=logits[:PROMPT].numpy(), greedy=new,
        std=std, perturbation=perturbation, tolerance=tolerance, margin=margin,
    )  # fmt: skip


# ---------------------------------------------------------------- one case


def dequantise(folder):
    """All tensors of an MLX checkpoint in f32 (numpy), expanded where config.json says that they are quantized."""
    quantization = json.loads((folder / "config.json").read_text()).get("quantization", {})
    raw = mx.load(str(folder / "model.safetensors"))
    out = {}
    for name, t in raw.items():
        path, _, leaf = name.rpartition(".")
        if leaf in ("scales", "biases") and f"{path}.scales" in raw:
            continue
        if f"{path}.scales" in raw and leaf == "weight":
            q = quantization.get(path, quantization)
            scales, biases = raw[f"{path}.scales"], raw.get(f"{path}.biases")
            if biases is not None:  # affine: without this MLX rounds the result to the scales' type
                scales, biases = scales.astype(mx.float32), biases.astype(mx.float32)
            mode = q.get("mode", "affine")
            t = mx.dequantize(t, scales, biases, q["group_size"], q["bits"], mode, dtype=mx.float32)
        out[name] = np.array(t.astype(mx.float32))
    return out


def published_gemma4(path, _module):
    """As the popular 4-bit files of Gemma 4: the dense layers and the router in 8 bits, each listed by its path."""
    wide = ".mlp." in path or path.endswith("router.proj")
    return {"group_size": 64, "bits": 8 if wide else 4}


def mlx_logits(source, prompt, weights=None, dtype=torch.float32, frequencies=None):
    """mlx-lm's f32 logits on the checkpoint in `source` (HF names), or on `weights` (MLX names) instead; with other
    `frequencies` of its rotation, where it cannot make them itself."""
    with contextlib.redirect_stdout(io.StringIO()):
        model, _ = mlx_lm.utils.load_model(source)
    if weights:
        model.load_weights([(k, mx.array(v)) for k, v in weights.items()])
    if frequencies is not None:
        for layer in model.layers:
            layer.self_attn.rope._freqs = 1 / mx.array(frequencies)
    for module in model.modules():
        for name in ("embed_scale", "embed_tokens_per_layer_scale"):
            if hasattr(module, name):
                setattr(module, name, float(torch.tensor(getattr(module, name)).to(dtype)))
    return np.array(model(mx.array([prompt]))[0])


class Case:
    """One model type in one format: the layout that the libraries write, which seeds fill."""

    def __init__(self, kind, fmt, scratch):
        self.kind, self.fmt, self.scratch = kind, fmt, scratch
        self.folder, self.source = scratch / f"{kind}-{fmt}", scratch / "source"
        self.model = tiny.build(kind, fmt)
        self.dtype = torch.float32
        self.save()
        config = json.loads((self.folder / "config.json").read_text())
        self.files = seeded.Files.of(self.folder, self.model, config.get("quantization"))

    def save(self):
        """Writes a checkpoint in this format, whatever is in it."""
        kind, fmt, folder, model = self.kind, self.fmt, self.folder, self.model
        tiny.save_for_mlx(model, kind, self.source)  # what mlx-lm can load: release-like names and config
        if fmt == "published":
            tiny.save_published(model, folder)
        elif kind == "gpt_oss" and fmt == "f32":  # transformers would write experts with their inputs first
            quietly(lambda: convert(str(self.source), str(folder), quantize=False, dtype="float32"))
        elif fmt in QUANTISED:
            origin, how = self.source, dict(QUANTISED[fmt])
            self.dtype = getattr(torch, how["dtype"])
            if fmt == "mixed" and kind.startswith("gemma4"):
                how["quant_predicate"] = published_gemma4
            if fmt == "mxfp4-q8":
                origin = self.scratch / "published"
                tiny.save_published(model, origin)
            quietly(lambda: convert(str(origin), str(folder), quantize=True, **how))
        elif fmt == "vl-bf16":
            self.dtype = torch.bfloat16
            (tiny.save_gemma_vl if kind == "gemma4" else tiny.save_vl)(model, kind, folder)
        else:
            tiny.save_hf(model, fmt, folder)

    def load(self):
        """Puts what is in the folder into the model; the same under MLX's names, where mlx-lm cannot read it."""
        kind, fmt, folder = self.kind, self.fmt, self.folder
        weights = None
        if fmt == "published":
            tiny.load_published(self.model, folder)
            weights = {k: v.numpy() for k, v in tiny.gpt_oss_to_mlx(tiny.live(self.model)).items()}
        elif fmt in QUANTISED or kind == "gpt_oss":
            weights = dequantise(folder)
            tiny.load_from_mlx(self.model, weights)
        elif fmt == "vl-bf16":
            tiny.load_vl(self.model, folder)
        else:
            self.model = tiny.load_hf(self.model, folder)
        if weights is None:
            shutil.rmtree(self.source)
            tiny.save_for_mlx(self.model, kind, self.source)
        tiny.round_embed_scales(self.model, self.dtype)
        return weights

    def attempt(self, seed):
        """Fills the checkpoint from a seed; the golden values, or why not."""
        prompt = np.random.default_rng([seed, 150]).integers(0, tiny.VOCAB, PROMPT).tolist()
        self.files.make(self.folder, seed)
        weights, model = self.load(), self.model
        is_quantised = self.fmt in QUANTISED or self.fmt == "published"
        found = judge(model, prompt, tiny.GREEDY.get(self.kind, GREEDY), is_quantised)
        if isinstance(found, str):
            return found
        # mlx-lm has no sliding window for `mistral`: compare where it does not matter yet.
        n = model.config.sliding_window if self.kind == "mistral" else PROMPT
        # mlx-lm rounds YaRN's range whatever `truncate` says.
        frequencies = model.model.rotary_emb.inv_freq.numpy() if self.kind == "gpt_oss" else None
        other = mlx_logits(self.source, prompt, weights, self.dtype, frequencies)
        found["mlx_difference"] = float(np.abs(other - found["all"])[:n].max()) / found["std"]
        assert found["mlx_difference"] < 1e-4, f"the two references differ by {found['mlx_difference']}"
        found["prompt"] = prompt
        return found

    def keep(self, target, seed):
        """Puts into the repository what the checkpoint can be made from."""
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        shutil.copyfile(self.folder / "config.json", target / "config.json")
        self.files.describe(self.folder, target, seed)


def quietly(work):
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        work()


def make(kind, fmt):
    name, start = f"{kind}-{fmt}", time.time()
    with tempfile.TemporaryDirectory() as scratch:
        torch.manual_seed(0)
        case = Case(kind, fmt, pathlib.Path(scratch))
        for seed in range(1, 2000):
            found = case.attempt(seed)
            if isinstance(found, str):
                print(f"\r{name}: seed {seed} {found:10}", end="", flush=True)
                continue
            case.keep(MODELS / name, seed)
            write_golden(MODELS / name, found, seed)
            print(
                f"\r{name}: seed {seed}, std {found['std']:.3f}, margin {found['margin']:.3f}, "
                f"perturbation {found['perturbation']:.1e}, mlx {found['mlx_difference']:.1e}, "
                f"{len(set(found['greedy']))} distinct, {time.time() - start:.0f} s",
                flush=True,
            )
            return
    raise SystemExit(f"{name}: no seed will do")


def versions():
    names = ("transformers", "torch", "mlx", "mlx-lm")
    return ", ".join(f"{n} {importlib.metadata.version(n).split('+')[0]}" for n in names)


def write_golden(target, found, seed):
    tensors = {
        "prompt": np.array(found["prompt"], np.int64),
        "positions": np.array(POSITIONS, np.int64),
        "logits": found["logits"].astype(np.float32),
        "greedy": np.array(found["greedy"], np.int64),
    }
    metadata = {
        "std": f"{found['std']:.6f}",
        "tolerance": f"{found['tolerance']:.6f}",
        "perturbation": f"{found['perturbation']:.3e}",
        "mlx_difference": f"{found['mlx_difference']:.3e}",
        "margin": f"{found['margin']:.4f}",
        "seed": str(seed),
        "reference": f"transformers in f32 on the (dequantised) weights; {versions()}",
    }
    # By hand: the safetensors package shuffles metadata, and the file should be the same every time.
    header, data = {"__metadata__": metadata}, b""
    for name, t in tensors.items():
        kind = {"int64": "I64", "float32": "F32"}[t.dtype.name]
        header[name] = dict(dtype=kind, shape=t.shape, data_offsets=[len(data), len(data) + t.nbytes])
        data += t.tobytes()
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    (target / "golden.safetensors").write_bytes(len(head).to_bytes(8, "little") + head + data)


def shard(source, target):
    """Cut a checkpoint in two files and an index, in the order and form of mlx-lm's own sharding."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    seed, whole = seeded.read(source / "weights.txt")
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        whole.make(scratch, seed)
        weights = mx.load(str(scratch / "model.safetensors"))
        names, half = sorted(weights), sum(w.nbytes for w in weights.values()) / 2
        shards, size = [{}, {}], 0
        for name in names:
            shards[size > half][name] = weights[name]
            size += weights[name].nbytes
        where, files = {}, {}
        (tensors,) = (tensors for _, _, tensors in whole.files.values())
        for i, part in enumerate(shards):
            file = f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors"
            mx.save_safetensors(str(scratch / file), part, metadata={"format": "mlx"})
            where |= {name: file for name in part}
            length, metadata, own = seeded.header(scratch / file)
            # Biases refer to scales: a module is not cut in two.
            files[file] = (length, metadata, {name: tensors[name] for name in own})
        parts = seeded.Files(files)
        written = {file: seeded.header(scratch / file)[2] for file in files}
        parts.make(scratch, seed)
        assert written == {file: seeded.header(scratch / file)[2] for file in files}
        parts.describe(scratch, target, seed)
    index = {"metadata": {"total_size": size}, "weight_map": where}
    (target / "model.safetensors.index.json").write_text(json.dumps(index, indent=4) + "\n")
    for file in ("config.json", "golden.safetensors"):
        shutil.copyfile(source / file, target / file)


# ---------------------------------------------------------------- README.md


def readme():
    """Rewrite the table of cases in README.md, between its two markers."""
    rows, total = [], 0
    for folder in sorted(p for p in MODELS.iterdir() if (p / "golden.safetensors").exists()):
        with safe_open(folder / "golden.safetensors", "np") as f:
            m = f.metadata()
        size = sum(p.stat().st_size for p in folder.iterdir())
        total += size
        rows.append(
            f"| {folder.name} | {m['seed']} | {float(m['std']):.2f} | {float(m['perturbation']):.1e} "
            f"| {float(m['tolerance']):.4f} | {float(m['margin']):.3f} | {float(m['mlx_difference']):.1e} "
            f"| {size / 1000:.0f} |"
        )
    text = (HERE / "README.md").read_text()
    start, end = "<!-- cases: written by make.py -->\n", "<!-- end of cases -->"
    before, rest = text.split(start)
    table = [
        f"{len(rows)} cases, {total / 1e6:.1f} MB; {versions()}.",
        "",
        "| case | seed | std | perturbation | tolerance | margin | mlx difference | kB |",
        "|---|---|---|---|---|---|---|---|",
        *rows,
    ]
    (HERE / "README.md").write_text(before + start + "\n".join(table) + "\n" + end + rest.split(end)[1])


def main():
    torch.set_num_threads(1)
    wanted = sys.argv[1:]
    for kind, fmt in MATRIX + EXTRA:
        if not wanted or f"{kind}-{fmt}" in wanted:
            make(kind, fmt)
    if not wanted or SHARDED[0] in wanted or SHARDED[1] in wanted:
        shard(MODELS / SHARDED[0], MODELS / SHARDED[1])
    readme()


if __name__ == "__main__":
    main()
