"""Writes small models with the package `gguf` into a folder, and says on stdout what they hold."""

import json
import sys
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf import GGUFValueType as Value

FIELDS = {
    "x.u8": (255, Value.UINT8),
    "x.i8": (-128, Value.INT8),
    "x.u16": (65535, Value.UINT16),
    "x.i16": (-32768, Value.INT16),
    "x.u32": (4294967295, Value.UINT32),
    "x.i32": (-2147483648, Value.INT32),
    "x.f32": (0.1, Value.FLOAT32),
    "x.bool": (True, Value.BOOL),
    "x.string": ("Zürich ☃", Value.STRING),
    "x.u64": (2**64 - 1, Value.UINT64),
    "x.i64": (-(2**63), Value.INT64),
    "x.f64": (1e-300, Value.FLOAT64),
    "x.texts": (["a", "", "▁b"], Value.ARRAY),
    "x.numbers": ([1, -2, 3], Value.ARRAY),
    "x.floats": ([0.5, -1.25], Value.ARRAY),
    "x.bools": ([True, False], Value.ARRAY),
}
HIDDEN, HEADS, WIDTH = 256, 4, 512
# Names in the file, names of transformers, shapes as numpy has them.
LAYER = {
    "token_embd.weight": ("model.embed_tokens.weight", (8, HIDDEN)),
    "output_norm.weight": ("model.norm.weight", (HIDDEN,)),
    "blk.0.attn_norm.weight": ("model.layers.0.input_layernorm.weight", (HIDDEN,)),
    "blk.0.attn_q.weight": ("model.layers.0.self_attn.q_proj.weight", (HIDDEN, HIDDEN)),
    "blk.0.attn_k.weight": ("model.layers.0.self_attn.k_proj.weight", (128, HIDDEN)),
    "blk.0.attn_v.weight": ("model.layers.0.self_attn.v_proj.weight", (128, HIDDEN)),
    "blk.0.attn_output.weight": ("model.layers.0.self_attn.o_proj.weight", (HIDDEN, HIDDEN)),
    "blk.0.ffn_norm.weight": ("model.layers.0.post_attention_layernorm.weight", (HIDDEN,)),
}
DENSE = {
    "blk.0.ffn_gate.weight": ("model.layers.0.mlp.gate_proj.weight", (WIDTH, HIDDEN)),
    "blk.0.ffn_up.weight": ("model.layers.0.mlp.up_proj.weight", (WIDTH, HIDDEN)),
    "blk.0.ffn_down.weight": ("model.layers.0.mlp.down_proj.weight", (HIDDEN, WIDTH)),
}
EXPERTS = {
    "blk.0.ffn_gate_inp.weight": ("model.layers.0.mlp.gate.weight", (4, HIDDEN)),
    "blk.0.ffn_gate_exps.weight": ("model.layers.0.mlp.experts.gate_proj.weight", (4, 64, HIDDEN)),
    "blk.0.ffn_up_exps.weight": ("model.layers.0.mlp.experts.up_proj.weight", (4, 64, HIDDEN)),
    "blk.0.ffn_down_exps.weight": ("model.layers.0.mlp.experts.down_proj.weight", (4, HIDDEN, 64)),
}
# What the package can quantise, and random bytes for the others.
QUANTIZED = [Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1, Type.Q8_0, Type.MXFP4, Type.TQ1_0, Type.TQ2_0]
FLOATS = [Type.F32, Type.F16, Type.BF16]
ODD = [Type.Q2_K, Type.Q3_K, Type.Q4_K, Type.Q5_K, Type.Q6_K, Type.IQ2_XXS, Type.IQ2_XS, Type.IQ3_XXS, Type.IQ1_S,
       Type.IQ4_NL, Type.IQ3_S, Type.IQ2_S, Type.IQ4_XS, Type.IQ1_M, Type.NVFP4]
random = np.random.default_rng(7)


def stored(kind, shape):
    """The bytes of a tensor as rows, of a type that fits its rows."""
    values = random.normal(0, 0.05, shape).astype(np.float32)
    if len(shape) == 1:
        kind = Type.F32
    block, size = gguf.GGML_QUANT_SIZES[kind]
    if shape[-1] % block:
        kind = Type.Q8_0
        block, size = gguf.GGML_QUANT_SIZES[kind]
    if kind in ODD:
        return kind, random.integers(0, 256, (*shape[:-1], shape[-1] // block * size), dtype=np.uint8)
    return kind, gguf.quants.quantize(values, kind)


def write(folder, name, architecture, tables, kinds, alignment=None, split=0):
    writer = gguf.GGUFWriter(folder / name, architecture, split_max_tensors=split)
    writer.add_block_count(1)
    writer.add_context_length(512)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(WIDTH)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    if tables is EXPERTS:
        writer.add_expert_count(4)
        writer.add_expert_used_count(2)
        writer.add_expert_feed_forward_length(64)
    if alignment:
        writer.add_custom_alignment(alignment)
    for key, (value, kind) in FIELDS.items():
        if kind == Value.ARRAY:
            writer.add_array(key, value)
        else:
            writer.add_key_value(key, value, kind)
    tensors = {}
    for index, (ours, (theirs, shape)) in enumerate({**LAYER, **tables}.items()):
        kind, data = stored(kinds[index % len(kinds)], shape)
        writer.add_tensor(ours, data, raw_dtype=kind)
        tensors[theirs] = {"type": kind.name, "shape": shape, "bytes": data.tobytes().hex()}
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    fields = {key: value for key, (value, _) in FIELDS.items()}
    return {"file": name, "fields": fields, "tensors": tensors}


def main():
    folder = Path(sys.argv[1])
    files = [
        write(folder, "floats.gguf", "llama", DENSE, FLOATS, alignment=256),
        write(folder, "quantized.gguf", "qwen2", DENSE, QUANTIZED),
        write(folder, "odd.gguf", "qwen3", DENSE, ODD, alignment=8),
        write(folder, "parts.gguf", "qwen3moe", EXPERTS, QUANTIZED + ODD, split=5),
    ]
    files[-1]["file"] = sorted(path.name for path in folder.glob("parts-*.gguf"))[-1]
    # The last part has no fields of its own: they are the first's.
    json.dump(files, sys.stdout)


main()
