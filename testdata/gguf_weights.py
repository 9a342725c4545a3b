"""Types and weights of the tiny models of `gguf_models.py`: what each tensor is stored as, and its bytes from a seed.

Formats that the package `gguf` quantises hold rounded normal numbers; in the others all bits are random but those of
the scales.
"""

import math
import re

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

import seeded

# ---------------------------------------------------------------- types

# What `llama-quantize` makes of these: the type of most matrices, then those by part of the name, first match.
# `head` is the output, or the embedding that serves as one.
HEAD = {"head": "Q6_K"}
PLANS = {
    "F32": ("F32", {}),
    "F16": ("F16", {}),
    "BF16": ("BF16", {}),
    "Q8_0": ("Q8_0", {}),
    "Q4_0": ("Q4_0", HEAD),
    "Q4_K_M": ("Q4_K", HEAD | {"attn_v": "Q6_K", "ffn_down": "Q6_K", "attn_qkv": "Q5_K"}),
    "IQ3_XXS": ("IQ3_XXS", HEAD | {"token_embd": "IQ3_S"}),
    # As gpt-oss is published; other models have their dense layers so as well.
    "MXFP4": ("Q8_0", {"exps": "MXFP4"}),
} | {
    name: (name, HEAD | {"token_embd": "Q4_K"})
    for name in (
        "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q5_K", "Q6_K", "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S",
        "IQ3_S", "IQ4_NL", "IQ4_XS", "TQ1_0", "TQ2_0", "NVFP4",
    )
}  # fmt: skip

# Where a block has its scale, where the factor of its minima and how much larger that is for weights around zero,
# and the deviation of its weights with a scale of one.
BLOCKS = {
    "Q2_K": (80, (82, 1.5), 13.9),
    "Q3_K": (108, None, 43.4),
    "Q4_K": (0, (2, 7.5), 259.0),
    "Q5_K": (0, (2, 15.5), 529.0),
    "Q6_K": (208, None, 1366.0),
    "IQ1_S": (0, None, 7.21),
    "IQ1_M": (None, None, 7.21),
    "IQ2_XXS": (0, None, 53.2),
    "IQ2_XS": (0, None, 55.9),
    "IQ2_S": (0, None, 56.2),
    "IQ3_XXS": (0, None, 143.0),
    "IQ3_S": (0, None, 140.0),
    "IQ4_NL": (0, None, 67.2),
    "IQ4_XS": (0, None, 1249.0),
}


def type_of(plan, name, shape, is_tied):
    """The type of a tensor. Norms, biases, routers and all that is small stay as they are."""
    small = re.search(r"norm|ffn_gate_inp|conv1d|per_layer_model_proj|layer_output_scale", name)
    if len(shape) == 1 or small or not name.endswith(".weight"):
        return Type.F32
    most, others = PLANS[plan]
    is_head = name == ("token_embd.weight" if is_tied else "output.weight")
    if is_head and "head" in others:
        return Type[others["head"]]
    return Type[next((kind for part, kind in others.items() if part in name), most)]


def blocks(seed, name, shape, kind, deviation):
    """Blocks of random bits with scales that give the weights about this deviation, a quarter more or less."""
    weights, size = gguf.GGML_QUANT_SIZES[kind]
    count = math.prod(shape) // weights
    data = np.frombuffer(seeded.fill(seed, {name: ("U8", (count * size,), ("words",))}, name), np.uint8)
    data = data.reshape(count, size).copy()
    if kind == Type.NVFP4:  # four scales: 8 steps to the octave, and the table is doubled
        exponent = math.floor(math.log2(deviation / seeded.E2M1_STD))
        low = 8 * (exponent + 7) + round(8 * (deviation / seeded.E2M1_STD / 2.0**exponent - 1)) - 2
        data[:, :4] = max(low, 1) + data[:, :4] % 5
        return data.reshape(*shape[:-1], -1)
    place, minimum, unit = BLOCKS[kind.name]
    factor = ("signed", 0.5 * deviation / unit, 0.75 * deviation / unit)
    scales = np.frombuffer(seeded.fill(seed, {name + ":scale": ("F16", (count,), factor)}, name + ":scale"), np.uint8)
    scales = scales.reshape(count, 2)
    if kind == Type.IQ1_M:  # in the highest four bits of four words
        for word in range(4):
            nibble = scales[:, word // 2] >> (4 * (word % 2)) & 15
            data[:, 49 + 2 * word] = data[:, 49 + 2 * word] & 15 | nibble << 4
        return data.reshape(*shape[:-1], -1)
    data[:, place : place + 2] = scales
    if minimum:
        place, ratio = minimum
        data[:, place : place + 2] = (scales.view(np.float16) * np.float16(ratio)).view(np.uint8)
    return data.reshape(*shape[:-1], -1)


# ---------------------------------------------------------------- weights


def rule(model, name, shape, is_tied):
    """How a tensor's values are made, in the words of `seeded.py`: weights of about unit gain."""
    gemma = model.startswith("gemma")
    if name.endswith("layer_output_scale.weight"):
        return ("uniform", 0.6, 0.6)
    if name.endswith("attn_sinks.weight"):
        return ("normal", 1.0, 2.0)
    if name.endswith("ssm_a"):
        return ("uniform", -1.7, -0.3)
    if name.endswith("ssm_dt.bias"):
        return ("uniform", 3.0, -4.0)
    if name.endswith("ssm_conv1d.weight"):
        return ("normal", 0.5, 0.0)
    if name.endswith("ffn_gate_inp.scale"):
        return ("normal", 0.1, 1.0)
    if name.endswith("ffn_down_exps.scale"):
        return ("uniform", 1.0, 0.5)
    if "norm" in name:
        factor = 1.0
        if model.startswith("gemma4") and re.search(r"attn_[qk]_norm", name):
            factor = 0.4  # scores are not divided by the root of the head's width
        elif gemma and name == "output_norm.weight":
            factor = shape[0] ** 0.5 / 1.5  # the tied table is small
        return ("normal", 0.1 * factor, factor)
    if name.endswith(".bias"):
        return ("normal", 0.3, 0.0)
    inputs = shape[-1]
    if model == "gpt-oss" and "_exps" in name:  # gates and ups beyond the clamp now and then
        return ("normal", (0.3 if "down" in name else 3.0) / inputs**0.5, 0.0)
    if gemma and name.endswith("ffn_gate_inp.weight"):  # its input is divided by the root of its width
        return ("normal", 1.5, 0.0)
    if name == "per_layer_token_embd.weight":
        return ("normal", 1 / 16, 0.0)
    if name == "token_embd.weight":
        return ("normal", 1.5 / inputs if gemma else 1 / 16 if is_tied else 0.7, 0.0)
    strong = re.search(r"attn_v|attn_output|ffn_gate_inp\.", name)
    return ("normal", (1.5 if strong else 1.0) / inputs**0.5, 0.0)


def data_of(model, plan, seed, name, shape, is_tied):
    """The type and the bytes of a tensor."""
    kind, how = type_of(plan, name, shape, is_tied), rule(model, name, shape, is_tied)
    if kind.name in BLOCKS or kind == Type.NVFP4:
        return kind, blocks(seed, name, shape, kind, how[1])
    values = np.frombuffer(seeded.fill(seed, {name: ("F32", shape, how)}, name), np.float32).reshape(shape)
    return kind, gguf.quants.quantize(values, kind)
