"""Put trained heads next to the released Pebble: MTP quantized with MLX into its folder, DFlash into a folder of its own.

    python export_heads.py --mtp heads/mtp.safetensors --dflash heads/dflash.safetensors

`models/pebble/model.safetensors` is not touched; `config.json` and the index of the weights learn about the head.
"""

from __future__ import annotations

import argparse
import json
import pathlib

import mlx.core as mx

import heads

EIGHT_BITS = ("mlp.gate", "mlp.shared_expert_gate", "fc")  # the rest has four, all in groups of 64


def converted(weights):
    """transformers' names and centred norms to MLX's, bf16."""
    out = {}
    for name, w in weights.items():
        if "norm" in name:
            w = w + 1.0
        if name.endswith("experts.gate_up_proj"):
            gate, up = mx.split(w, 2, axis=1)
            stem = name.replace("experts.gate_up_proj", "switch_mlp.")
            out[stem + "gate_proj.weight"], out[stem + "up_proj.weight"] = gate, up
        elif name.endswith("experts.down_proj"):
            out[name.replace("experts.down_proj", "switch_mlp.down_proj.weight")] = w
        else:
            out[name] = w
    return {f"mtp.{k}": v.astype(mx.bfloat16) for k, v in out.items()}


def quantised(weights):
    out, overrides = {}, {}
    for name, w in weights.items():
        if w.ndim == 1:
            out[name] = w
            continue
        path = name.removesuffix(".weight")
        bits = 8 if path.endswith(EIGHT_BITS) else 4
        if bits == 8:
            overrides[path] = dict(group_size=64, bits=8)
        out[name], out[path + ".scales"], out[path + ".biases"] = mx.quantize(w, group_size=64, bits=bits)
    return out, overrides


def export_mtp(source, folder):
    weights = {k: v.astype(mx.float32) for k, v in mx.load(str(source)).items()}
    tensors, overrides = quantised(converted(weights))
    mx.save_safetensors(str(folder / "mtp.safetensors"), tensors, metadata={"format": "mlx"})

    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    before = len(index["weight_map"])
    trunk = {k: f for k, f in index["weight_map"].items() if not k.startswith("mtp.")}
    index["weight_map"] = dict(sorted({**trunk, **{k: "mtp.safetensors" for k in tensors}}.items()))
    trunk_bytes = sum(v.nbytes for v in mx.load(str(folder / "model.safetensors")).values())
    index["metadata"]["total_size"] = trunk_bytes + sum(v.nbytes for v in tensors.values())
    if len(trunk) == before:  # the first time
        index["metadata"]["total_parameters"] += sum(v.size for v in weights.values())
    path.write_text(json.dumps(index, indent=4))

    path = folder / "config.json"
    config = json.loads(path.read_text())
    for key in ("quantization", "quantization_config"):
        config[key].update(overrides)
    config["text_config"]["mtp_num_hidden_layers"] = 1
    path.write_text(json.dumps(config, indent=4))


def export_dflash(source, folder):
    folder.mkdir(exist_ok=True)
    weights = {k: v.astype(mx.bfloat16) for k, v in mx.load(str(source)).items()}
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(heads.dflash_config(), indent=2) + "\n")


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--mtp", type=pathlib.Path)
    ap.add_argument("--dflash", type=pathlib.Path)
    args = ap.parse_args()
    if args.mtp:
        export_mtp(args.mtp, heads.TARGET)
    if args.dflash:
        export_dflash(args.dflash, heads.TARGET.parent / "pebble-dflash")


if __name__ == "__main__":
    main()
