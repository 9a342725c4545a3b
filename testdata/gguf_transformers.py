"""A GGUF file as a model of transformers, for `gguf_reference.py`.

What llama.cpp's converter does to each architecture is undone here, from its published source and without any code of
ours: names, the order of rows, norms with their one added, stacks of experts. Configurations come from the file's keys.
"""

import gguf
import numpy as np
import torch
import transformers as tf

import gguf_models

# ---------------------------------------------------------------- from GGUF


def read(path):
    """A file's keys, without the architecture's prefix, and its weights in f32."""
    reader = gguf.GGUFReader(path)
    family = reader.fields["general.architecture"].contents()
    keys = {name.removeprefix(f"{family}."): field.contents() for name, field in reader.fields.items()}
    weights = {}
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        weights[tensor.name] = torch.tensor(values.reshape([int(n) for n in reversed(tensor.shape)]))
    return family, keys, weights


NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
    "post_ffw_norm_1": "post_feedforward_layernorm_1",
    "pre_ffw_norm_2": "pre_feedforward_layernorm_2",
    "post_ffw_norm_2": "post_feedforward_layernorm_2",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    "attn_qkv": "linear_attn.in_proj_qkv",
    "attn_gate": "linear_attn.in_proj_z",
    "ssm_beta": "linear_attn.in_proj_b",
    "ssm_alpha": "linear_attn.in_proj_a",
    "ssm_ba": "linear_attn.in_proj_ba",
    "ssm_conv1d": "linear_attn.conv1d",
    "ssm_norm": "linear_attn.norm",
    "ssm_out": "linear_attn.out_proj",
    "inp_gate": "per_layer_input_gate",
    "proj": "per_layer_projection",
    "post_norm": "post_per_layer_input_norm",
}
GLOBAL = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "per_layer_token_embd": "model.embed_tokens_per_layer",
    "per_layer_model_proj": "model.per_layer_model_projection",
    "per_layer_proj_norm": "model.per_layer_projection_norm",
}
WHOLE = {
    "attn_sinks.weight": "self_attn.sinks",
    "ssm_a": "linear_attn.A_log",
    "ssm_dt.bias": "linear_attn.dt_bias",
    "layer_output_scale.weight": "layer_scalar",
    "ffn_gate_inp.scale": "router.scale",
    "ffn_down_exps.scale": "router.per_expert_scale",
}
OWN = {
    "gemma3": {"ffn_norm": "pre_feedforward_layernorm"},
    "gemma4": {"ffn_norm": "pre_feedforward_layernorm", "ffn_gate_inp": "router.proj"},
    "gpt-oss": {"ffn_gate_inp": "mlp.router"},
}


def state_of(family, keys, weights):
    """The state of transformers' model."""
    names, state = NAMES | OWN.get(family, {}), {}
    layers = [{} for _ in range(keys["block_count"])]
    for name, w in weights.items():
        if name.startswith("blk."):
            _, layer, rest = name.split(".", 2)
            layers[int(layer)][rest] = w
        elif name != "rope_freqs.weight":
            module, _, suffix = name.rpartition(".")
            state[f"{GLOBAL[module]}.{suffix}"] = w
    trunk = keys["block_count"] - keys.get("nextn_predict_layers", 0)
    for number, tensors in enumerate(layers[:trunk]):
        if "attn_qkv.weight" in tensors and "ssm_a" not in tensors:
            tensors = apart(keys, tensors)
        if family == "llama":
            tensors = permuted_back(keys, tensors)
        if "ssm_a" in tensors:
            tensors = delta_back(family, keys, tensors)
        own, tensors = experts_back(family, tensors)
        for name, w in tensors.items():
            module, _, suffix = name.rpartition(".")
            own[WHOLE.get(name) or f"{names[module]}.{suffix}"] = w
        state |= {f"model.layers.{number}.{name}": w for name, w in own.items()}
    if family in ("gemma3", "qwen3next", "qwen35", "qwen35moe"):  # transformers adds one itself
        for name in state:
            if name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight"):
                state[name] = state[name] - 1
    state.setdefault("lm_head.weight", state["model.embed_tokens.weight"])
    return state


def apart(keys, tensors):
    """Queries (with their gates), keys and values, one after the other."""
    out, kv_rows = dict(tensors), keys["attention.head_count_kv"] * keys["attention.key_length"]
    joined = out.pop("attn_qkv.weight")
    parts = joined.split([len(joined) - 2 * kv_rows, kv_rows, kv_rows])
    return out | {f"attn_{name}.weight": part for name, part in zip("qkv", parts)}


def permuted_back(keys, tensors):
    """The converter took both halves of a head in turns."""
    out, counts = dict(tensors), {"attn_q": "attention.head_count", "attn_k": "attention.head_count_kv"}
    for name, key in counts.items():
        w, heads = tensors[f"{name}.weight"], keys[key]
        pairs = w.reshape(heads, w.shape[0] // heads // 2, 2, w.shape[1])
        out[f"{name}.weight"] = pairs.transpose(1, 2).reshape(w.shape)
    return out


def delta_back(family, keys, tensors):
    """Value heads in the order of their key heads; qwen3next: what goes in as one matrix, by key head."""
    out, heads, key_heads = dict(tensors), keys["ssm.time_step_rank"], keys["ssm.group_count"]
    size, key_size, each = keys["ssm.inner_size"] // heads, keys["ssm.state_size"], heads // key_heads
    key_rows = 2 * key_heads * key_size

    def grouped(w, size):
        if family == "qwen3next":
            return w
        return w.reshape(each, key_heads, size, *w.shape[1:]).transpose(0, 1).reshape(w.shape)

    for name in ("attn_qkv.weight", "ssm_conv1d.weight"):
        w = tensors[name]
        out[name] = torch.cat([w[:key_rows], grouped(w[key_rows:], size)])
    out["ssm_conv1d.weight"] = out["ssm_conv1d.weight"].unsqueeze(1)
    out["attn_gate.weight"] = grouped(tensors["attn_gate.weight"], size)
    out["ssm_out.weight"] = grouped(tensors["ssm_out.weight"].T, size).T.contiguous()
    for name in ("ssm_beta.weight", "ssm_alpha.weight", "ssm_dt.bias", "ssm_a"):
        if name in tensors:
            out[name] = grouped(tensors[name], 1)
    out["ssm_a"] = torch.log(-out["ssm_a"].double()).float()
    if family == "qwen3next":
        z, qkv = out.pop("attn_gate.weight"), out.pop("attn_qkv.weight")
        q, k, v = qkv.split([key_rows // 2, key_rows // 2, heads * size])
        parts = [part.reshape(key_heads, -1, part.shape[1]) for part in (q, k, v, z)]
        return out | {"linear_attn.in_proj_qkvz": torch.cat(parts, 1).flatten(0, 1)}
    return out


def experts_back(family, tensors):
    """The experts under transformers' names, and what is left."""
    out, tensors = {}, dict(tensors)
    if "ffn_gate_inp_shexp.weight" in tensors:
        tensors["ffn_gate_inp_shexp.weight"] = tensors["ffn_gate_inp_shexp.weight"].reshape(1, -1)
    if "linear_attn.in_proj_qkvz" in tensors:
        out["linear_attn.in_proj_qkvz.weight"] = tensors.pop("linear_attn.in_proj_qkvz")
    if "ffn_down_exps.weight" not in tensors:
        return out, tensors
    base = "experts" if family == "gemma4" else "mlp.experts"
    stacks = {}
    for name in [name for name in tensors if "_exps." in name and not name.endswith("scale")]:
        part, _, suffix = name.removeprefix("ffn_").partition("_exps.")
        stacks[part, suffix] = tensors.pop(name)
    for suffix in {suffix for _, suffix in stacks}:
        both = stacks.get(("gate_up", suffix))
        down = stacks["down", suffix]
        if family == "gpt-oss":  # rows take turns, and inputs come first
            both = torch.stack([stacks["gate", suffix], stacks["up", suffix]], 2).flatten(1, 2)
            if suffix == "weight":
                both, down = both.transpose(1, 2), down.transpose(1, 2)
        elif both is None:
            both = torch.cat([stacks["gate", suffix], stacks["up", suffix]], 1)
        ending = "_bias" if suffix == "bias" else ""
        out |= {f"{base}.gate_up_proj{ending}": both.contiguous(), f"{base}.down_proj{ending}": down.contiguous()}
    return out, tensors


# ---------------------------------------------------------------- configurations


def model_of(family, keys, weights):
    """transformers' model for a file."""
    k, layers = keys, keys["block_count"] - keys.get("nextn_predict_layers", 0)
    settings = dict(
        vocab_size=len(weights["token_embd.weight"]), hidden_size=k["embedding_length"],
        num_hidden_layers=layers, num_attention_heads=k["attention.head_count"],
        num_key_value_heads=k["attention.head_count_kv"], rms_norm_eps=k["attention.layer_norm_rms_epsilon"],
        max_position_embeddings=k["context_length"], intermediate_size=k["feed_forward_length"],
        tie_word_embeddings="output.weight" not in weights, bos_token_id=None, eos_token_id=None, pad_token_id=None,
        head_dim=k.get("attention.key_length", k["embedding_length"] // k["attention.head_count"]),
        num_experts_per_tok=k.get("expert_used_count"), moe_intermediate_size=k.get("expert_feed_forward_length"),
        shared_expert_intermediate_size=k.get("expert_shared_feed_forward_length"), norm_topk_prob=True,
    )  # fmt: skip
    experts = k.get("expert_count")
    settings |= {"num_local_experts" if family in ("llama", "gpt-oss") else "num_experts": experts}
    settings = {key: value for key, value in settings.items() if value is not None}
    rope = dict(rope_type=k.get("rope.scaling.type", "default"), rope_theta=k["rope.freq_base"])
    if rope["rope_type"] != "default":
        rope["factor"] = k["rope.scaling.factor"]
    if rope["rope_type"] == "yarn":
        rope["original_max_position_embeddings"] = k["rope.scaling.original_context_length"]
        rope |= {b: k[f"rope.scaling.yarn_{b}"] for b in ("beta_fast", "beta_slow") if f"rope.scaling.yarn_{b}" in k}
    own, kind = dict(rope_parameters=rope), family
    if family == "llama":
        kind = "mixtral" if experts else "llama" if "rope_freqs.weight" in weights else "mistral"
        if kind == "llama":
            own["rope_parameters"] = rope | dict(rope_type="llama3", **gguf_models.LLAMA3)
        else:
            own["sliding_window"] = None
    elif "ssm.inner_size" in k:
        rope["partial_rotary_factor"] = k["rope.dimension_count"] / settings["head_dim"]
        if "rope.dimension_sections" in k:
            rope |= dict(mrope_interleaved=True, mrope_section=k["rope.dimension_sections"][:3])
        own |= dict(
            full_attention_interval=k["full_attention_interval"], linear_conv_kernel_dim=k["ssm.conv_kernel"],
            linear_key_head_dim=k["ssm.state_size"], linear_num_key_heads=k["ssm.group_count"],
            linear_num_value_heads=k["ssm.time_step_rank"],
            linear_value_head_dim=k["ssm.inner_size"] // k["ssm.time_step_rank"],
        )  # fmt: skip
    elif family == "gpt-oss":
        own |= dict(rope_parameters=rope | dict(truncate=False), layer_types=kinds(i % 2 == 0 for i in range(layers)))
    elif family.startswith("gemma"):
        own |= gemma(family, k, rope, weights)
    if family in ("gpt-oss", "gemma3", "gemma4"):
        own["sliding_window"] = k["attention.sliding_window"]
    config_class, model_class = CLASSES[kind]
    model = model_class(config_class(**settings | own, attn_implementation="eager")).eval()
    if kind == "llama":  # the file's factors are what its configuration says
        plain = rope["rope_theta"] ** -(torch.arange(0, settings["head_dim"], 2).double() / settings["head_dim"])
        told = plain / weights["rope_freqs.weight"]
        assert torch.allclose(model.model.rotary_emb.inv_freq.double(), told, rtol=1e-5)
    return model


def kinds(slide):
    return ["sliding_attention" if s else "full_attention" for s in slide]


def gemma(family, k, rope, weights):
    local = dict(rope_type="default", rope_theta=k["rope.freq_base_swa"])
    own = dict(rope_parameters=dict(full_attention=rope, sliding_attention=local))
    if family == "gemma3":
        slide = ((i + 1) % 6 != 0 for i in range(k["block_count"]))
        return own | dict(query_pre_attn_scalar=k["attention.key_length"], layer_types=kinds(slide))
    turning = int((weights["rope_freqs.weight"] == 1).sum())
    rope |= dict(rope_type="proportional", partial_rotary_factor=2 * turning / k["attention.key_length"])
    slide, counts = k["attention.sliding_window_pattern"], k["attention.head_count_kv"]
    widths = k["feed_forward_length"]
    per_layer, is_moe = k["embedding_length_per_layer_input"], "expert_count" in k
    is_listed = isinstance(counts, list)
    return own | dict(
        layer_types=kinds(slide), head_dim=k["attention.key_length_swa"], global_head_dim=k["attention.key_length"],
        num_key_value_heads=counts[slide.index(True)] if is_listed else counts,
        num_global_key_value_heads=counts[slide.index(False)] if is_listed else None,
        attention_k_eq_v=is_moe, intermediate_size=min(widths) if isinstance(widths, list) else widths,
        use_double_wide_mlp=isinstance(widths, list), final_logit_softcapping=k["final_logit_softcapping"],
        hidden_size_per_layer_input=per_layer, vocab_size_per_layer_input=len(weights["token_embd.weight"]),
        num_kv_shared_layers=k["attention.shared_kv_layers"], enable_moe_block=is_moe,
        top_k_experts=k.get("expert_used_count"),
    )  # fmt: skip


CLASSES = {
    "llama": (tf.LlamaConfig, tf.LlamaForCausalLM),
    "mistral": (tf.MistralConfig, tf.MistralForCausalLM),
    "mixtral": (tf.MixtralConfig, tf.MixtralForCausalLM),
    "qwen2": (tf.Qwen2Config, tf.Qwen2ForCausalLM),
    "qwen3": (tf.Qwen3Config, tf.Qwen3ForCausalLM),
    "qwen3moe": (tf.Qwen3MoeConfig, tf.Qwen3MoeForCausalLM),
    "qwen3next": (tf.Qwen3NextConfig, tf.Qwen3NextForCausalLM),
    "qwen35": (tf.Qwen3_5TextConfig, tf.Qwen3_5ForCausalLM),
    "qwen35moe": (tf.Qwen3_5MoeTextConfig, tf.Qwen3_5MoeForCausalLM),
    "gemma3": (tf.Gemma3TextConfig, tf.Gemma3ForCausalLM),
    "gemma4": (tf.Gemma4TextConfig, tf.Gemma4ForCausalLM),
    "gpt-oss": (tf.GptOssConfig, tf.GptOssForCausalLM),
}
