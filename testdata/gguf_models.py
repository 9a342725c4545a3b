#!/usr/bin/env python3
"""Write tiny models as GGUF files, as llama.cpp's converter would, with weights from a seed.

    python testdata/gguf_models.py FOLDER llama:Q8_0:1 gpt-oss:MXFP4:3 …

Each argument is a model, the plan of its types, and a seed; FOLDER/llama-Q8_0.gguf and so on are written, and stdout
has a digest of every file's weights, by name. Needs the packages `gguf` and `numpy` alone: tests make the files anew,
and `gguf_reference.py` says what logits they must give.

Weights are made as the file has them: queries and keys of llama are those of a permuted file already, and the
reference undoes it. All matrices have multiples of 256 inputs, so that blocks of any format fit.
"""

import hashlib
import json
import math
import pathlib
import re
import sys

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

from gguf_weights import data_of

VOCAB, HIDDEN, WIDTH, EXPERTS, USED = 256, 256, 256, 4, 2

# ---------------------------------------------------------------- keys

COMMON = {
    "context_length": 4096,
    "embedding_length": HIDDEN,
    "feed_forward_length": WIDTH,
    "attention.layer_norm_rms_epsilon": 1e-6,
    "vocab_size": VOCAB,
}
HEADS = {"attention.head_count": 4, "attention.head_count_kv": 2}
WIDE = {"attention.key_length": 128, "attention.value_length": 128}
LLAMA = HEADS | {"block_count": 2, "rope.freq_base": 5e5, "rope.dimension_count": 64}
MOE = {"expert_count": EXPERTS, "expert_used_count": USED}
NARROW = {"expert_feed_forward_length": WIDTH}
SHARED = {"expert_shared_feed_forward_length": WIDTH}
# Two linear layers, then a full one.
HYBRID = WIDE | {
    "block_count": 3, "attention.head_count": 2, "attention.head_count_kv": 1, "rope.freq_base": 1e6,
    "rope.dimension_count": 32, "full_attention_interval": 3, "ssm.conv_kernel": 4, "ssm.state_size": 64,
    "ssm.group_count": 2, "ssm.time_step_rank": 4, "ssm.inner_size": 256,
}  # fmt: skip
SECTIONS = {"rope.dimension_sections": [6, 5, 5, 0]}
GEMMA4 = WIDE | {
    "attention.head_count": 4, "attention.key_length_swa": 64, "attention.value_length_swa": 64,
    "attention.sliding_window": 16, "rope.freq_base": 1e6, "rope.freq_base_swa": 1e4, "rope.dimension_count": 128,
    "rope.dimension_count_swa": 64, "final_logit_softcapping": 6.0,
}  # fmt: skip

# Model: GGUF's name of the architecture, its keys.
MODELS = {
    "llama": ("llama", LLAMA),
    "mistral": ("llama", LLAMA | {"rope.freq_base": 1e6, "attention.head_count_kv": 1}),
    "mixtral": ("llama", LLAMA | MOE | {"rope.freq_base": 1e6}),
    "qwen2": ("qwen2", HEADS | {"block_count": 2, "rope.freq_base": 1e6}),
    # 512 wide attention, and YaRN.
    "qwen3": ("qwen3", WIDE | {
        "block_count": 2, "attention.head_count": 4, "attention.head_count_kv": 1, "rope.freq_base": 1e6,
        "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 32}),
    "qwen3moe": ("qwen3moe", HEADS | MOE | NARROW | {
        "block_count": 2, "attention.key_length": 64, "attention.value_length": 64, "rope.freq_base": 1e6,
        "expert_count": 8}),
    "qwen3next": ("qwen3next", HYBRID | MOE | NARROW | SHARED),
    "qwen35": ("qwen35", HYBRID | SECTIONS),
    "qwen35moe": ("qwen35moe", HYBRID | SECTIONS | MOE | NARROW | SHARED),
    # What is in two or three tensors elsewhere is in one, and a layer that drafts comes after the others.
    "qwen35moe-fused": ("qwen35moe", HYBRID | SECTIONS | MOE | NARROW | SHARED | {
        "block_count": 4, "nextn_predict_layers": 1}),
    # The sixth layer is the only one that sees everything, as no key says.
    "gemma3": ("gemma3", HEADS | {
        "block_count": 6, "attention.key_length": 64, "attention.value_length": 64, "attention.sliding_window": 16,
        "rope.freq_base": 1e6, "rope.freq_base_swa": 1e4, "rope.scaling.type": "linear", "rope.scaling.factor": 8.0}),
    "gemma4": ("gemma4", GEMMA4 | MOE | NARROW | {
        "block_count": 2, "attention.head_count_kv": [2, 1], "attention.sliding_window_pattern": [True, False],
        "attention.shared_kv_layers": 0, "embedding_length_per_layer_input": 0}),
    # The last two layers read keys and values of others and are twice as wide; every layer has its own embedding.
    "gemma4-e": ("gemma4", GEMMA4 | {
        "block_count": 5, "attention.head_count_kv": 2, "attention.shared_kv_layers": 2,
        "attention.sliding_window_pattern": [True, True, False, True, False],
        "embedding_length_per_layer_input": WIDTH, "feed_forward_length": [256, 256, 256, 512, 512]}),
    "gpt-oss": ("gpt-oss", HEADS | MOE | NARROW | {
        "block_count": 2, "attention.key_length": 64, "attention.value_length": 64, "attention.sliding_window": 16,
        "rope.freq_base": 150000.0, "rope.scaling.type": "yarn", "rope.scaling.factor": 32.0,
        "rope.scaling.original_context_length": 64, "rope.scaling.yarn_beta_fast": 32.0,
        "rope.scaling.yarn_beta_slow": 1.0}),
}  # fmt: skip
TIED = ("llama", "qwen35", "gemma3", "gemma4", "gemma4-e")
# Llama 3's scaling of the rotation, which the file has as factors.
LLAMA3 = dict(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64)


def keys(model):
    return COMMON | MODELS[model][1]


# ---------------------------------------------------------------- tensors


def rope_factors(model):
    """The divisors of the rotation's frequencies, where a model has some."""
    k = keys(model)
    if model.startswith("gemma4"):  # a quarter of a full layer's head turns
        half = k["attention.key_length"] // 2
        return [1.0] * (half // 4) + [1e30] * (half - half // 4)
    if model != "llama":
        return None
    original, out = LLAMA3["original_max_position_embeddings"], []
    for i in range(0, k["rope.dimension_count"], 2):
        length = 2 * math.pi * k["rope.freq_base"] ** (i / k["rope.dimension_count"])
        low, high = LLAMA3["low_freq_factor"], LLAMA3["high_freq_factor"]
        smooth = min(max((original / length - low) / (high - low), 0.0), 1.0)
        out.append(1 / ((1 - smooth) / LLAMA3["factor"] + smooth))
    return out


def shapes(model):
    """Names and shapes of a file's tensors, the outermost dimension first."""
    k = keys(model)
    family, layers = MODELS[model][0], k["block_count"]
    out = {"token_embd.weight": (VOCAB, HIDDEN), "output_norm.weight": (HIDDEN,)}
    if model not in TIED:
        out["output.weight"] = (VOCAB, HIDDEN)
    if (factors := rope_factors(model)) is not None:
        out["rope_freqs.weight"] = (len(factors),)
    per_layer = k.get("embedding_length_per_layer_input", 0)
    if per_layer:
        out["per_layer_token_embd.weight"] = (VOCAB, layers * per_layer)
        out["per_layer_model_proj.weight"] = (layers * per_layer, HIDDEN)
        out["per_layer_proj_norm.weight"] = (per_layer,)
    for layer in range(layers):
        own = delta(k, family) if is_delta(k, layer) else attention(k, family, layer)
        own |= {"attn_norm.weight": (HIDDEN,)} | feed_forward(k, family, layer)
        if per_layer:
            own |= {"inp_gate.weight": (per_layer, HIDDEN), "proj.weight": (HIDDEN, per_layer)}
            own["post_norm.weight"] = (HIDDEN,)
        if model.endswith("-fused"):
            own = fused(own)
        if layer >= layers - k.get("nextn_predict_layers", 0):
            own |= {f"nextn.{name}.weight": (HIDDEN,) for name in ("enorm", "hnorm", "shared_head_norm")}
            own["nextn.eh_proj.weight"] = (HIDDEN, 2 * HIDDEN)
        out |= {f"blk.{layer}.{name}": shape for name, shape in own.items()}
    return out


def is_delta(k, layer):
    is_trunk = layer < k["block_count"] - k.get("nextn_predict_layers", 0)
    return is_trunk and (layer + 1) % k.get("full_attention_interval", 1) != 0


def fused(own):
    """Tensors as some converters join them."""
    out = dict(own)
    gate, up = (out.pop(f"ffn_{part}_exps.weight") for part in ("gate", "up"))
    out["ffn_gate_up_exps.weight"] = (gate[0], gate[1] + up[1], gate[2])
    if "attn_q.weight" in out:
        rows = sum(out.pop(f"attn_{part}.weight")[0] for part in "qkv")
        out["attn_qkv.weight"] = (rows, HIDDEN)
    return out


def delta(k, family):
    """A gated delta net."""
    heads, inner = k["ssm.time_step_rank"], k["ssm.inner_size"]
    channels = 2 * k["ssm.group_count"] * k["ssm.state_size"] + inner
    out = {
        "attn_qkv.weight": (channels, HIDDEN),
        "attn_gate.weight": (inner, HIDDEN),
        "ssm_conv1d.weight": (channels, k["ssm.conv_kernel"]),
        "ssm_a": (heads,),
        "ssm_dt.bias": (heads,),
        "ssm_norm.weight": (inner // heads,),
        "ssm_out.weight": (HIDDEN, inner),
    }
    if family == "qwen3next":
        return out | {"ssm_ba.weight": (2 * heads, HIDDEN)}
    return out | {"ssm_beta.weight": (heads, HIDDEN), "ssm_alpha.weight": (heads, HIDDEN)}


def attention(k, family, layer):
    heads, kv_heads = k["attention.head_count"], k["attention.head_count_kv"]
    kv_heads = kv_heads[layer] if isinstance(kv_heads, list) else kv_heads
    slides = k.get("attention.sliding_window_pattern", [False] * k["block_count"])[layer]
    size = k.get("attention.key_length", HIDDEN // heads)
    size = k["attention.key_length_swa"] if slides else size
    gates = 2 if "full_attention_interval" in k else 1
    out = {
        "attn_q.weight": (heads * size * gates, HIDDEN),
        "attn_k.weight": (kv_heads * size, HIDDEN),
        "attn_v.weight": (kv_heads * size, HIDDEN),
        "attn_output.weight": (HIDDEN, heads * size),
    }
    if family in ("qwen2", "gpt-oss"):
        names = ("attn_q", "attn_k", "attn_v") + (("attn_output",) if family == "gpt-oss" else ())
        out |= {f"{name}.bias": out[f"{name}.weight"][:1] for name in names}
    if family == "gpt-oss":
        out["attn_sinks.weight"] = (heads,)
    elif family not in ("llama", "qwen2"):
        out |= {"attn_q_norm.weight": (size,), "attn_k_norm.weight": (size,)}
    if family == "gemma4" and "expert_count" in k and not slides:  # keys are values
        del out["attn_v.weight"]
    if layer >= k["block_count"] - k.get("attention.shared_kv_layers", 0):
        out = {name: shape for name, shape in out.items() if not re.match("attn_[kv]", name)}
    return out


def feed_forward(k, family, layer):
    """Both norms around it, the dense layer, experts."""
    gemma, experts = family.startswith("gemma"), k.get("expert_count", 0)
    width = k["feed_forward_length"]
    width = width[layer] if isinstance(width, list) else width
    is_post = family in ("gpt-oss", "qwen3next", "qwen35", "qwen35moe")
    out = {"post_attention_norm.weight" if is_post else "ffn_norm.weight": (HIDDEN,)}
    if gemma:
        out |= {"post_attention_norm.weight": (HIDDEN,), "post_ffw_norm.weight": (HIDDEN,)}
    if family == "gemma4":
        out["layer_output_scale.weight"] = (1,)
    up, down = (width, HIDDEN), (HIDDEN, width)
    if not experts or family == "gemma4":
        out |= {"ffn_gate.weight": up, "ffn_up.weight": up, "ffn_down.weight": down}
    if not experts:
        return out
    out |= {"ffn_gate_inp.weight": (experts, HIDDEN), "ffn_down_exps.weight": (experts, *down)}
    if family == "gemma4":
        norms = ("post_ffw_norm_1", "pre_ffw_norm_2", "post_ffw_norm_2")
        out |= {"ffn_gate_up_exps.weight": (experts, 2 * width, HIDDEN)} | {f"{n}.weight": (HIDDEN,) for n in norms}
        return out | {"ffn_gate_inp.scale": (HIDDEN,), "ffn_down_exps.scale": (experts,)}
    out |= {"ffn_gate_exps.weight": (experts, *up), "ffn_up_exps.weight": (experts, *up)}
    if family == "gpt-oss":
        own = {f"ffn_{part}_exps.bias": (experts, WIDTH) for part in ("gate", "up", "down")}
        return out | own | {"ffn_gate_inp.bias": (experts,)}
    if "expert_shared_feed_forward_length" in k:
        out |= {"ffn_gate_shexp.weight": up, "ffn_up_shexp.weight": up, "ffn_down_shexp.weight": down}
        # Converters have written it as a vector and as a matrix of one row.
        out["ffn_gate_inp_shexp.weight"] = (HIDDEN,) if family == "qwen3next" else (1, HIDDEN)
    return out


# ---------------------------------------------------------------- files


def write(path, model, plan, seed):
    """Writes a model; the digest of its weights."""
    family, factors = MODELS[model][0], rope_factors(model)
    writer = gguf.GGUFWriter(path, family)
    writer.add_type("model")
    writer.add_name(f"{model} {plan}, seed {seed}")
    writer.add_quantization_version(2)
    writer.add_tokenizer_model("none")
    for key, value in keys(model).items():
        key = f"{family}.{key}"
        match value:
            case list():
                writer.add_array(key, value)
            case str():
                writer.add_string(key, value)
            case float():
                writer.add_float32(key, value)
            case _:
                writer.add_uint32(key, value)
    digest = hashlib.sha256()
    for name, shape in shapes(model).items():
        if name == "rope_freqs.weight":
            kind, data = Type.F32, np.array(factors, np.float32)
        else:
            kind, data = data_of(model, plan, seed, name, shape, model in TIED)
        digest.update(data.tobytes())
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return digest.hexdigest()[:16]


def main():
    folder, digests = pathlib.Path(sys.argv[1]), {}
    for argument in sys.argv[2:]:
        model, plan, seed = argument.split(":")
        digests[f"{model}-{plan}"] = write(folder / f"{model}-{plan}.gguf", model, plan, int(seed))
    json.dump(digests, sys.stdout)


if __name__ == "__main__":
    main()
