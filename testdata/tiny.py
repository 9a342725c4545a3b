"""The tiny architectures of `make.py`: how they are built, saved and loaded."""

import copy
import json
import re

import torch
import transformers as tf
from safetensors.torch import load_file, save_file

VOCAB = 256

# Linear attention (Gated DeltaNet) and gated attention, as Qwen3.5 and Qwen3-Next have them.
# `full_attention_interval` 3: two linear layers, then a full one.
HYBRID = dict(
    num_hidden_layers=3, full_attention_interval=3, num_attention_heads=2, num_key_value_heads=1, head_dim=64,
    linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=32, linear_value_head_dim=32,
    linear_conv_kernel_dim=4,
)  # fmt: skip
MROPE = dict(
    rope_parameters=dict(
        rope_type="default", rope_theta=1e6, partial_rotary_factor=0.25, mrope_interleaved=True, mrope_section=[3, 3, 2]
    )
)
PLAIN_ROPE = dict(rope_parameters=dict(rope_type="default", rope_theta=1e6))
LLAMA3_ROPE = dict(  # positions beyond 64 and wavelengths on both sides of it: the scaling shows within the prompt
    rope_parameters=dict(
        rope_type="llama3", rope_theta=5e5, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
        original_max_position_embeddings=64,
    )
)  # fmt: skip
YARN_ROPE = dict(
    rope_parameters=dict(rope_type="yarn", rope_theta=1e6, factor=4.0, original_max_position_embeddings=64),
    max_position_embeddings=256,
)

# The scaling shows within the prompt, and its range does not end at whole dimensions: `truncate` matters.
GPT_OSS_ROPE = dict(
    rope_parameters=dict(
        rope_type="yarn", rope_theta=150000.0, factor=32.0, beta_fast=32.0, beta_slow=1.0, truncate=False,
        original_max_position_embeddings=64,
    ),
    max_position_embeddings=2048,
)  # fmt: skip
# Gemma 4: sliding layers of 32-wide heads, global ones of 64 with proportional rotation of a quarter. The softcap is
# low enough to show, the window short enough to be left several times.
GEMMA4 = dict(
    num_hidden_layers=3, layer_types=["sliding_attention", "sliding_attention", "full_attention"], sliding_window=40,
    num_attention_heads=4, num_key_value_heads=2, head_dim=32, global_head_dim=64, num_global_key_value_heads=1,
    attention_k_eq_v=True, intermediate_size=64, final_logit_softcapping=6.0, hidden_size_per_layer_input=0,
    vocab_size_per_layer_input=VOCAB, num_kv_shared_layers=0, use_double_wide_mlp=False, enable_moe_block=False,
    tie_word_embeddings=True,
)  # fmt: skip
# Greedy tokens of a case, where it is not the usual number.
GREEDY = {"gemma3": 32, "gemma4": 32, "gemma4_dense": 32, "gemma4_e": 32, "gpt_oss": 32}
# The `model_type` of the kinds that are not called after it.
MODEL_TYPE = {"gemma4_dense": "gemma4", "gemma4_e": "gemma4"}

# type: (config class, model class, what it has of its own)
TYPES = {
    "qwen3_5": (tf.Qwen3_5TextConfig, tf.Qwen3_5ForCausalLM, dict(
        HYBRID, **MROPE, linear_key_head_dim=64, linear_value_head_dim=64, intermediate_size=64,
        tie_word_embeddings=True)),
    "qwen3_5_moe": (tf.Qwen3_5MoeTextConfig, tf.Qwen3_5MoeForCausalLM, dict(
        HYBRID, **MROPE, num_hidden_layers=2, full_attention_interval=2,
        num_experts=8, num_experts_per_tok=2, moe_intermediate_size=64, shared_expert_intermediate_size=64)),
    "qwen3_next": (tf.Qwen3NextConfig, tf.Qwen3NextForCausalLM, dict(
        HYBRID, rope_parameters=dict(rope_type="default", rope_theta=1e6, partial_rotary_factor=0.25),
        num_experts=4, num_experts_per_tok=2, norm_topk_prob=True, moe_intermediate_size=64,
        shared_expert_intermediate_size=64, decoder_sparse_step=1, mlp_only_layers=[1], intermediate_size=64)),
    "qwen3": (tf.Qwen3Config, tf.Qwen3ForCausalLM, dict(
        YARN_ROPE, num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=1, head_dim=64,
        intermediate_size=64)),
    "qwen3_moe": (tf.Qwen3MoeConfig, tf.Qwen3MoeForCausalLM, dict(
        PLAIN_ROPE, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=1, head_dim=32,
        intermediate_size=64, num_experts=8, num_experts_per_tok=2, norm_topk_prob=True, moe_intermediate_size=64,
        decoder_sparse_step=1, mlp_only_layers=[])),
    "qwen2": (tf.Qwen2Config, tf.Qwen2ForCausalLM, dict(
        PLAIN_ROPE, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=64)),
    "llama": (tf.LlamaConfig, tf.LlamaForCausalLM, dict(
        LLAMA3_ROPE, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=1, head_dim=32,
        intermediate_size=64, tie_word_embeddings=True)),
    "mistral": (tf.MistralConfig, tf.MistralForCausalLM, dict(
        PLAIN_ROPE, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=1, head_dim=32,
        intermediate_size=64, sliding_window=48)),
    "mixtral": (tf.MixtralConfig, tf.MixtralForCausalLM, dict(
        PLAIN_ROPE, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=64, num_local_experts=4, num_experts_per_tok=2)),
    "gpt_oss": (tf.GptOssConfig, tf.GptOssForCausalLM, dict(
        GPT_OSS_ROPE, hidden_size=192, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=32,
        intermediate_size=64, num_local_experts=4, num_experts_per_tok=2, sliding_window=40,
        layer_types=["sliding_attention", "full_attention"])),
    "gemma4": (tf.Gemma4TextConfig, tf.Gemma4ForCausalLM, dict(
        GEMMA4, num_hidden_layers=2, layer_types=["sliding_attention", "full_attention"],
        enable_moe_block=True, num_experts=8, top_k_experts=2, moe_intermediate_size=64)),
    "gemma4_dense": (tf.Gemma4TextConfig, tf.Gemma4ForCausalLM, GEMMA4),
    # The last two layers read the keys and values of layers 2 and 1.
    "gemma4_e": (tf.Gemma4TextConfig, tf.Gemma4ForCausalLM, dict(
        GEMMA4, num_hidden_layers=5, layer_types=[
            "sliding_attention", "full_attention", "sliding_attention", "sliding_attention", "full_attention"],
        attention_k_eq_v=False, num_global_key_value_heads=None, hidden_size_per_layer_input=64,
        num_kv_shared_layers=2, use_double_wide_mlp=True)),
    # 256 and (unquantized) 64 wide: mlx-lm rounds the embedding's scale to bf16, which for those roots changes nothing.
    "gemma3": (tf.Gemma3TextConfig, tf.Gemma3ForCausalLM, dict(
        hidden_size=256, num_hidden_layers=3, layer_types=["sliding_attention", "sliding_attention", "full_attention"],
        sliding_window=40, num_attention_heads=4, num_key_value_heads=2, head_dim=32, query_pre_attn_scalar=24,
        intermediate_size=64, tie_word_embeddings=True, rope_parameters=dict(
            full_attention=dict(rope_type="linear", factor=8.0, rope_theta=1e6),
            sliding_attention=dict(rope_type="default", rope_theta=1e4)))),
}  # fmt: skip
# Unquantized checkpoints take the most room: a narrower model (96 is no multiple of 64) with narrower experts.
NARROW = dict(hidden_size=96)
NARROW_OF = {
    "qwen3_5": dict(linear_key_head_dim=32, linear_value_head_dim=32),
    "qwen3_5_moe": dict(moe_intermediate_size=32, shared_expert_intermediate_size=32),
    "qwen3_next": dict(moe_intermediate_size=32, shared_expert_intermediate_size=32),
    "qwen3_moe": dict(num_attention_heads=3, moe_intermediate_size=32),
    "qwen2": dict(num_attention_heads=3, num_key_value_heads=1),
    "llama": dict(num_attention_heads=3),
    "mistral": dict(num_attention_heads=3),
    "mixtral": dict(num_attention_heads=3, num_key_value_heads=1, intermediate_size=32),
    "gpt_oss": dict(intermediate_size=32),
    "gemma4": dict(moe_intermediate_size=32),
    "gemma3": dict(hidden_size=64),
}
UNQUANTISED = ("f32", "bf16", "vl-bf16")
# Experts of gpt-oss that are packed when released.
PACKED = ("experts.gate_up_proj", "experts.down_proj")


def build(kind, fmt):
    """A transformers model in f32, as transformers initialises it."""
    config_class, model_class, own = TYPES[kind]
    settings = dict(vocab_size=VOCAB, hidden_size=128, max_position_embeddings=4096, tie_word_embeddings=False) | own
    # No end of text: greedy runs continue for all their tokens.
    settings |= dict(bos_token_id=None, eos_token_id=None, pad_token_id=None)
    if fmt in UNQUANTISED:
        settings |= NARROW | NARROW_OF.get(kind, {})
    if fmt == "4bit-g128":
        settings |= dict(intermediate_size=128)
    settings = copy.deepcopy(settings)  # transformers changes lists and tables that it is given
    model = model_class(config_class(**settings, attn_implementation="eager")).eval()
    model.config.dtype = torch.float32
    return model


def round_embed_scales(model, dtype):
    """Round the factors of Gemma's embeddings to the type of the stored weights, as both references do on those."""
    for module in model.modules():
        if hasattr(module, "embed_scale"):
            module.embed_scale.copy_(module.embed_scale.to(dtype).float())


# ---------------------------------------------------------------- saving


def save_hf(model, fmt, folder):
    """As transformers writes it (experts one by one, rope_parameters)."""
    if fmt == "bf16":  # a copy: `to` would round RoPE's frequencies as well, for good
        model = copy.deepcopy(model).to(torch.bfloat16)
    model.save_pretrained(folder)


def live(model):
    """The tensors under transformers' own names inside the program: experts fused. Tied heads left out."""
    state = {k: v.detach().clone().contiguous() for k, v in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        state.pop("lm_head.weight")
    return state


def nested_config(model, kind, dtype):
    """config.json of a release: the text model inside a vision-language one."""
    text = json.loads(model.config.to_json_string(use_diff=False))
    keep = ("model_type", "dtype", "rope_parameters", "layer_types", "hidden_act", "rms_norm_eps", "norm_topk_prob",
            "vocab_size", "hidden_size", "max_position_embeddings", "tie_word_embeddings", *TYPES[kind][2])  # fmt: skip
    text = {k: text[k] for k in keep if k in text}
    text["full_attention_interval"] = TYPES[kind][2]["full_attention_interval"]
    text["dtype"] = dtype
    return {
        "architectures": [tf.Qwen3_5MoeForConditionalGeneration.__name__],
        "model_type": kind,
        "text_config": text,
        "tie_word_embeddings": text["tie_word_embeddings"],
    }


def save_vl(model, kind, folder):
    """The layout of the published Qwen3.5 MoE models: nested config and names, fused experts, a vision tower."""
    folder.mkdir(parents=True)
    state = {k.replace("model.", "model.language_model.", 1): v.bfloat16() for k, v in live(model).items()}
    g = torch.Generator().manual_seed(0)  # some tensors of a vision tower, which a text engine must pass over
    for name, shape in {
        "blocks.0.attn.qkv.weight": (96, 32), "blocks.0.attn.qkv.bias": (96,), "blocks.0.norm1.weight": (32,),
        "merger.linear_fc2.weight": (96, 128), "patch_embed.proj.weight": (32, 3, 2, 4, 4),
    }.items():  # fmt: skip
        state[f"model.visual.{name}"] = (0.1 * torch.randn(shape, generator=g)).bfloat16()
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    config = nested_config(model, kind, "bfloat16")
    config["vision_config"] = dict(
        model_type=kind, depth=1, hidden_size=32, num_heads=2, patch_size=4, temporal_patch_size=2, out_hidden_size=96
    )
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def gpt_oss_to_mlx(state):
    """transformers' names and shapes to MLX's: experts output first, gate and up apart."""
    out = {}
    for name, w in state.items():
        base, _, leaf = name.rpartition("experts.")
        if not base:
            out[name] = w
            continue
        part, suffix = (leaf.removesuffix("_bias"), "bias") if leaf.endswith("_bias") else (leaf, "weight")
        w = w if suffix == "bias" else w.transpose(1, 2)  # [experts, out, in]
        if part == "gate_up_proj":
            out[f"{base}experts.gate_proj.{suffix}"] = w[:, 0::2].contiguous()
            out[f"{base}experts.up_proj.{suffix}"] = w[:, 1::2].contiguous()
        else:
            out[f"{base}experts.{part}.{suffix}"] = w.contiguous()
    return out


def gpt_oss_from_mlx(state):
    """The way back."""
    out = {}
    for name, w in state.items():
        base, _, leaf = name.rpartition("experts.")
        if not base:
            out[name] = w
            continue
        part, _, suffix = leaf.partition(".")
        if part == "up_proj":
            continue
        if part == "gate_proj":
            w = torch.stack([w, state[f"{base}experts.up_proj.{suffix}"]], 2).flatten(1, 2)  # rows take turns
            part = "gate_up_proj"
        out[f"{base}experts.{part}_bias" if suffix == "bias" else f"{base}experts.{part}"] = (
            w if suffix == "bias" else w.transpose(1, 2).contiguous()
        )
    return out


def save_published(model, folder):
    """gpt-oss as released: bf16, experts in mxfp4 blocks with gate and up rows taking turns."""
    import mlx.core as mx
    import numpy as np

    folder.mkdir(parents=True)
    state = {}
    for name, w in live(model).items():
        if not name.endswith(PACKED):
            state[name] = w.bfloat16()
            continue
        rows = w.transpose(1, 2).contiguous()  # [experts, out, in]
        codes, scales = mx.quantize(mx.array(rows.numpy()), mode="mxfp4")
        experts, out, inputs = rows.shape
        blocks = np.array(codes).view(np.uint8).reshape(experts, out, inputs // 32, 16)
        state[f"{name}_blocks"], state[f"{name}_scales"] = torch.tensor(blocks), torch.tensor(np.array(scales))
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    config = release_config(model)
    config["quantization_config"] = dict(
        quant_method="mxfp4",
        modules_to_not_convert=["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"],
    )
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    save_tokenizer(folder)


def release_config(model):
    """config.json of transformers 4: rope_theta and rope_scaling."""
    config = json.loads(model.config.to_json_string(use_diff=False))
    config = {k: v for k, v in config.items() if not k.startswith("_") and v is not None}
    config["architectures"] = [type(model).__name__]
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = rope
    return config
def gemma4_config(model, kind):
    """config.json of a release: the text model inside a multimodal one, global layers by keys of their own."""
    text = json.loads(model.config.to_json_string(use_diff=False))
    text.pop("per_layer_config", None)
    text |= {key: TYPES[kind][2][key] for key in ("global_head_dim", "num_global_key_value_heads")}
    return {
        "architectures": [tf.Gemma4ForConditionalGeneration.__name__],
        "model_type": "gemma4",
        "text_config": text,
        "tie_word_embeddings": True,
        "vocab_size": VOCAB,
    }


def save_gemma_vl(model, kind, folder):
    """The layout of the published Gemma 4 models: nested config and names, fused experts, a vision tower."""
    folder.mkdir(parents=True)
    state = {k.replace("model.", "model.language_model.", 1): v.bfloat16() for k, v in live(model).items()}
    g = torch.Generator().manual_seed(0)
    for name, shape in {
        "vision_tower.encoder.layers.0.self_attn.q_proj.linear.weight": (32, 32),
        "vision_tower.encoder.layers.0.input_layernorm.weight": (32,),
        "vision_tower.patch_embedder.input_proj.weight": (32, 48), "embed_vision.embedding_projection.weight": (96, 32),
    }.items():  # fmt: skip
        state[f"model.{name}"] = (0.1 * torch.randn(shape, generator=g)).bfloat16()
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    config = gemma4_config(model, kind)
    config["text_config"]["dtype"] = "bfloat16"
    config["vision_config"] = dict(model_type="gemma4_vision", num_hidden_layers=1, hidden_size=32)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def save_for_mlx(model, kind, folder):
    """What mlx-lm loads and converts: HF names, and a config.json in the form that releases have."""
    model.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    own = TYPES[kind][2]
    if kind.startswith("gemma"):
        if kind == "gemma4":  # nested, as released
            state = {k.replace("model.", "model.language_model.", 1): v for k, v in live(model).items()}
            save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
            config = gemma4_config(model, kind)
        elif kind == "gemma3":  # transformers 4 style, which is all that mlx-lm reads
            rope = config.pop("rope_parameters")
            config["rope_theta"] = rope["full_attention"].pop("rope_theta")
            config["rope_scaling"] = rope["full_attention"]
            config["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
            config["sliding_window_pattern"] = own["num_hidden_layers"]
            config.pop("layer_types")
        else:  # both spellings
            config |= {key: own[key] for key in ("global_head_dim", "num_global_key_value_heads")}
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        save_tokenizer(folder)
        return
    if kind == "qwen3_5_moe":
        state = {k.replace("model.", "model.language_model.", 1): v for k, v in live(model).items()}
        save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
        config = nested_config(model, kind, "float32")
    elif kind == "gpt_oss":
        save_file(gpt_oss_to_mlx(live(model)), folder / "model.safetensors", metadata={"format": "pt"})
        config = release_config(model)
    elif kind == "qwen3_5":
        config |= dict(model_type=kind, full_attention_interval=own["full_attention_interval"])
    else:  # transformers 4 style: rope_theta, rope_scaling, num_experts
        rope = config.pop("rope_parameters")
        config["rope_theta"] = rope.pop("rope_theta")
        if "partial_rotary_factor" in rope:
            config["partial_rotary_factor"] = rope.pop("partial_rotary_factor")
        config["rope_scaling"] = rope if rope["rope_type"] != "default" else None
        for key in ("num_experts", "full_attention_interval"):
            if key in own:
                config[key] = own[key]
        if kind != "mixtral":
            config.pop("num_local_experts", None)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    save_tokenizer(folder)


def save_tokenizer(folder):
    """`mlx_lm.convert` insists on a tokenizer; it is not kept."""
    from tokenizers import Tokenizer, models

    words = {f"<{i}>": i for i in range(VOCAB)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<0>"))
    tf.PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)


# ---------------------------------------------------------------- loading


def load_hf(model, folder):
    """The model whose weights `save_pretrained` wrote, in f32."""
    model = type(model).from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    model.config.dtype = torch.float32
    return model


def load_vl(model, folder):
    """Put the text model's tensors of a multimodal checkpoint into the transformers model."""
    text = "model.language_model."
    state = load_file(folder / "model.safetensors")
    state = {"model." + k.removeprefix(text): w.float() for k, w in state.items() if k.startswith(text)} | {
        k: w.float() for k, w in state.items() if not k.startswith("model.")
    }
    load_state(model, state)


def load_published(model, folder):
    """Put gpt-oss as released into the transformers model; its experts are what transformers makes of the blocks."""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    shapes, state = {k: w.shape for k, w in live(model).items()}, {}
    stored = load_file(folder / "model.safetensors")
    for name, w in stored.items():
        base, _, part = name.rpartition("_")
        if part == "blocks":
            scales = stored[f"{base}_scales"]
            state[base] = convert_moe_packed_tensors(w, scales, dtype=torch.float32).reshape(shapes[base])
        elif part != "scales":
            state[name] = w.float()
    load_state(model, state)


def load_state(model, state):
    if model.config.tie_word_embeddings:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state, strict=True)


def load_from_mlx(model, weights):
    """Put f32 tensors under MLX names into the transformers model."""
    if model.config.model_type == "gpt_oss":
        state = gpt_oss_from_mlx({name: torch.tensor(w) for name, w in weights.items()})
        model.load_state_dict(state, strict=True)
        return
    state = {}
    centred = model.config.model_type.startswith(("qwen3_5", "qwen3_next"))
    for name, w in weights.items():
        w = torch.tensor(w)
        name = name.removeprefix("language_model.").replace("block_sparse_moe", "mlp")
        if name.endswith("conv1d.weight"):
            w = w.movedim(1, 2)
        # transformers' norms of these types add 1; the converted checkpoint has it added already
        elif centred and name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight"):
            w = w - 1
        state[re.sub(r"(switch_mlp|experts\.switch_glu)\.(\w+)\.weight", r"experts.\2", name)] = w
    for name in [n for n in state if n.endswith("experts.gate_proj")]:
        base = name.removesuffix("gate_proj")
        state[base + "gate_up_proj"] = torch.cat([state.pop(name), state.pop(base + "up_proj")], 1)
    load_state(model, state)
