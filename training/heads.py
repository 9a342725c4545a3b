"""The two draft heads of Pebble and what their training shares.

`Mtp` is the multi-token prediction head of Qwen3.5: one decoder layer that is given the embedding of a token and the
target's hidden state of the token before, and guesses the token after. `DFlash` drafts a block at once: it is given
the last token and masks, and attends to features taken from several layers of the target.

The target is Pebble as it is released, its 4-bit weights dequantized, and stays as it is. Labels are its choices
(arg max) and its distribution on corpus text, so no text has to be generated.
"""

from __future__ import annotations

import json
import math
import pathlib
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch.utils.data import DataLoader

import configs
import data
import model as M
import schedule
from train import make_optimisers

START = time.time()
TARGET = pathlib.Path(__file__).parent.parent / "models" / "pebble"
BLOCK = 16  # tokens of a DFlash block, the known first one included
MASK_TOKEN = 4089  # <|mask|>, never used by the corpus
TAPS = [1, 3, 4, 5, 6]  # target layers whose output DFlash sees; not the last, whose output transformers gives out normed


# --------------------------------------------------------------------------------------------
# the target
# --------------------------------------------------------------------------------------------


def dequantise(weight, scales, biases):
    """MLX affine: unsigned integers packed into 32-bit words from the low end; value = scale * integer + bias."""
    groups = scales.shape[-1]
    bits = 32 * weight.shape[-1] // (groups * 64)
    words = weight.view(torch.int32).to(torch.int64)[..., None] & 0xFFFFFFFF
    q = (words >> torch.arange(0, 32, bits)) & (2**bits - 1)
    q = q.reshape(*scales.shape, -1).float()
    return (q * scales.float()[..., None] + biases.float()[..., None]).flatten(-2)


def from_mlx(folder, prefix, file="model.safetensors"):
    """Tensors below `prefix` of an MLX model folder as fp32, with transformers' names and norm weights (centred on 0)."""
    raw = load_file(str(pathlib.Path(folder) / file))
    out = {}
    for name, t in raw.items():
        if not name.startswith(prefix) or name.endswith((".scales", ".biases")):
            continue
        key = name.removesuffix(".weight")
        t = dequantise(t, raw[key + ".scales"], raw[key + ".biases"]) if key + ".scales" in raw else t.float()
        if name.endswith("norm.weight") and ".linear_attn." not in name or ".pre_fc_norm_" in name:
            t = t - 1.0
        if "conv1d" in name:
            t = t.transpose(1, 2)
        out[name.removeprefix(prefix)] = t.contiguous()
    for name in [n for n in out if n.endswith("switch_mlp.gate_proj.weight")]:
        stem = name.removesuffix("switch_mlp.gate_proj.weight")
        gate, up, down = (out.pop(f"{stem}switch_mlp.{p}_proj.weight") for p in ("gate", "up", "down"))
        out[stem + "experts.gate_up_proj"] = torch.cat([gate, up], 1)
        out[stem + "experts.down_proj"] = down
    return out


def load_target(device, dtype, folder=TARGET):
    target = M.Model(configs.pebble())
    target.load_state_dict(from_mlx(folder, "language_model."))
    target.dtype = dtype
    return target.to(device).requires_grad_(False)


# --------------------------------------------------------------------------------------------
# MTP
# --------------------------------------------------------------------------------------------


class Mtp(nn.Module):
    """Index i of the head holds the pair (token i, hidden state of token i - 1) and predicts token i + 1."""

    def __init__(self, c):
        super().__init__()
        d = c.hidden_size
        self.pre_fc_norm_embedding = M.RMSNorm(d, c.rms_norm_eps)
        self.pre_fc_norm_hidden = M.RMSNorm(d, c.rms_norm_eps)
        self.fc = nn.Linear(2 * d, d, bias=False)
        self.layers = nn.ModuleList([M.Layer(c, c.layer_types.index("full_attention"))])
        self.norm = M.RMSNorm(d, c.rms_norm_eps)

    @torch.no_grad()
    def init_from(self, target):
        """The layer and the norm start as the target's last ones."""
        self.layers[0].load_state_dict(target.model.layers[-1].state_dict())
        self.norm.load_state_dict(target.model.norm.state_dict())
        self.fc.weight.normal_(0, self.fc.weight.shape[1] ** -0.5)

    def forward(self, emb, hid, pos, past_k, past_v, mask):
        """emb, hid [B, T, D]. past_k, past_v: lists of keys and values to attend to before the new ones, which are returned."""
        dtype = emb.dtype
        layer = self.layers[0]
        h = M.linear(torch.cat([self.pre_fc_norm_embedding(emb), self.pre_fc_norm_hidden(hid)], -1).to(dtype), self.fc).float()
        q, k, v, gate = layer.self_attn.project(layer.input_layernorm(h).to(dtype), pos)
        h = h + layer.self_attn.mix(q, torch.cat([*past_k, k], 2), torch.cat([*past_v, v], 2), gate, mask)
        y, aux, _ = layer.mlp(layer.post_attention_layernorm(h).to(dtype))
        return self.norm(h + y).to(dtype), k, v, aux


def mtp_mask(doc, step):
    """Which keys draft step `step` (from 1) sees, over the keys of steps 1..step laid one after the other.

    Drafting from index j, step s stands at index i = j + s - 1. It sees the true entries (step 1) up to j and the
    entries that the steps 2..s left at j + 1..i, which are thrown away after the round.
    """
    t = doc.shape[1]

    def mod(b, h, q, k):
        m, at = k // t, k % t  # the entry was written by step m + 1 at index `at`
        true = (m == 0) & (q - at >= step - 1) & (doc[b, q] == doc[b, at])
        own = (m > 0) & (q - at == step - 1 - m)
        return true | own

    return make_mask(mod, doc, t, step * t)


# --------------------------------------------------------------------------------------------
# DFlash
# --------------------------------------------------------------------------------------------


class PlainNorm(nn.Module):
    """RMS norm with plain weights, as Qwen3 has them."""

    def __init__(self, dim, eps):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        y = x.float()
        return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight).to(x.dtype)


class DFlashAttention(nn.Module):
    def __init__(self, c):
        super().__init__()
        d, self.hd = c["hidden_size"], c["head_dim"]
        self.q_proj = nn.Linear(d, c["num_attention_heads"] * self.hd, bias=False)
        self.k_proj = nn.Linear(d, c["num_key_value_heads"] * self.hd, bias=False)
        self.v_proj = nn.Linear(d, c["num_key_value_heads"] * self.hd, bias=False)
        self.o_proj = nn.Linear(c["num_attention_heads"] * self.hd, d, bias=False)
        self.q_norm = PlainNorm(self.hd, c["rms_norm_eps"])
        self.k_norm = PlainNorm(self.hd, c["rms_norm_eps"])
        self.theta = c["rope_theta"]

    def rope(self, x, pos):
        inv = 1.0 / (self.theta ** (torch.arange(0, self.hd, 2, device=x.device, dtype=torch.float32) / self.hd))
        ang = pos[:, None, :, None].float() * inv
        cos, sin = ang.cos(), ang.sin()
        a, b = x.float().chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)

    def heads(self, x):
        return x.view(*x.shape[:2], -1, self.hd)

    def keys_values(self, x, pos):
        k = self.rope(self.k_norm(self.heads(M.linear(x, self.k_proj))).transpose(1, 2), pos)
        return k, self.heads(M.linear(x, self.v_proj)).transpose(1, 2)

    def forward(self, a, pos, ctx_k, ctx_v, mask):
        q = self.rope(self.q_norm(self.heads(M.linear(a, self.q_proj))).transpose(1, 2), pos)
        k, v = self.keys_values(a, pos)
        o = M.attend(q, torch.cat([ctx_k, k], 2), torch.cat([ctx_v, v], 2), mask)
        return M.linear(o.transpose(1, 2).flatten(2), self.o_proj)


class DFlashLayer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.self_attn = DFlashAttention(c)
        self.mlp = M.MLP(c["hidden_size"], c["intermediate_size"])
        self.input_layernorm = PlainNorm(c["hidden_size"], c["rms_norm_eps"])
        self.post_attention_layernorm = PlainNorm(c["hidden_size"], c["rms_norm_eps"])

    def forward(self, x, pos, ctx, ctx_pos, mask, dtype: torch.dtype):
        """x [B, Q, D] block tokens (residual stream, fp32); ctx [B, T, D] features of the context, used as they are."""
        k, v = self.self_attn.keys_values(ctx, ctx_pos)
        x = x + self.self_attn(self.input_layernorm(x).to(dtype), pos, k, v, mask)
        return x + self.mlp(self.post_attention_layernorm(x).to(dtype))


def dflash_config():
    return dict(
        architectures=["DFlashDraftModel"], model_type="qwen3", dtype="bfloat16", vocab_size=4096, hidden_size=256, intermediate_size=640,
        num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=4, head_dim=64, hidden_act="silu", rms_norm_eps=1e-6, rope_theta=100000.0,
        rope_scaling=None, max_position_embeddings=8192, attention_bias=False, attention_dropout=0.0, tie_word_embeddings=True, layer_types=["full_attention"] * 4,
        sliding_window=None, use_sliding_window=False, num_target_layers=8, block_size=BLOCK, dflash_config=dict(target_layer_ids=TAPS, mask_token_id=MASK_TOKEN))


class DFlash(nn.Module):
    def __init__(self, c):
        super().__init__()
        d, taps = c["hidden_size"], len(c["dflash_config"]["target_layer_ids"])
        self.fc = nn.Linear(taps * d, d, bias=False)
        self.hidden_norm = PlainNorm(d, c["rms_norm_eps"])
        self.layers = nn.ModuleList(DFlashLayer(c) for _ in range(c["num_hidden_layers"]))
        self.norm = PlainNorm(d, c["rms_norm_eps"])
        for name, p in self.named_parameters():
            if p.ndim == 2:
                nn.init.normal_(p, 0, p.shape[1] ** -0.5)
                if name.endswith(("o_proj.weight", "down_proj.weight")):
                    p.data.mul_((2 * c["num_hidden_layers"]) ** -0.5)

    def context(self, taps):
        """Features [B, T, n * D] of committed tokens to what every layer attends to."""
        return self.hidden_norm(M.linear(taps, self.fc))

    def forward(self, emb, pos, ctx, ctx_pos, mask):
        x = emb.float()
        for layer in self.layers:
            x = layer(x, pos, ctx, ctx_pos, mask, emb.dtype)
        return self.norm(x).to(emb.dtype)


def dflash_mask(doc, anchors):
    """Block n sees the context strictly before its anchor and itself, bidirectionally. anchors [B, N] are indices into the row."""
    t = doc.shape[1]

    def mod(b, h, q, k):
        a = anchors[b, q // BLOCK]
        at = torch.where(k < t, k, 0)
        ctx = (k < t) & (k < a) & (doc[b, at] == doc[b, a])
        own = (k >= t) & ((k - t) // BLOCK == q // BLOCK)
        return ctx | own

    n = anchors.shape[1] * BLOCK
    return make_mask(mod, doc, n, t + n)


def make_mask(mod, doc, queries, keys):
    """A flex attention block mask on CUDA, a boolean tensor [B, 1, queries, keys] elsewhere."""
    b, device = doc.shape[0], doc.device
    if doc.is_cuda:
        from torch.nn.attention.flex_attention import create_block_mask

        return create_block_mask(mod, b, None, queries, keys, device=device)
    index = lambda n, at: torch.arange(n, device=device).view([-1 if i == at else 1 for i in range(4)])
    return mod(index(b, 0), index(1, 1), index(queries, 2), index(keys, 3)).expand(b, 1, queries, keys)


# --------------------------------------------------------------------------------------------
# losses and the training loop
# --------------------------------------------------------------------------------------------


def distil(hid, target_hid, embedding, weight, hard: float):
    """Cross entropy with the target's choice (share `hard`) and with its distribution, and how often the choices agree.

    hid, target_hid [N, D], weight [N]; the agreement counts rows with a weight above one half.
    """
    lp = F.linear(hid, embedding.to(hid.dtype)).float().log_softmax(-1)
    pt = F.linear(target_hid, embedding.to(hid.dtype)).float().softmax(-1)
    best = pt.argmax(-1)
    ce = -hard * lp.gather(1, best[:, None])[:, 0] - (1 - hard) * (pt * lp).sum(-1)
    on = weight > 0.5
    agree = ((lp.argmax(-1) == best) & on).sum() / on.sum().clamp(min=1)
    return (ce * weight).sum() / weight.sum().clamp(min=1e-6), agree


def arguments():
    ap = schedule.arguments(lr=2.5e-3, decay_from=0.4, seed=11)
    ap.add_argument("--hard", type=float, default=0.7, help="share of the target's choice in the loss, the rest is its distribution")
    return ap


def train(head, target, step_loss, args, file):
    """Minimise step_loss(batch) -> (loss, dict of numbers to log) over corpus rows; the rate follows the clock."""
    cuda = next(head.parameters()).is_cuda
    device = "cuda" if cuda else "cpu"
    args.adamw = False
    muon, adam = make_optimisers(head, args)
    rows = data.PackedCorpus(str(TARGET / "tokenizer.json"), args.length, f"heads-{args.seed}")
    loader = iter(DataLoader(rows, batch_size=args.batch, num_workers=args.workers, pin_memory=cuda, prefetch_factor=6 if args.workers else None))
    if args.resume:
        head.load_state_dict({k: v.float() for k, v in load_file(args.resume).items()})
    print(f"{sum(p.numel() for p in head.parameters())} parameters, {time.time() - START:.1f} s", flush=True)
    budget = args.minutes * 60
    step, t0, log = 0, None, []
    while True:
        if t0 is None and step == 3:  # compilation is over
            if cuda:
                torch.cuda.synchronize()
            t0 = window = time.time()
            first = t0 - START
            print(f"first steps done at {first:.1f} s", flush=True)
        frac = step / args.steps if args.steps else 0.0 if t0 is None else (time.time() - t0) / (budget - first)
        if frac >= 1:
            break
        lr = schedule.rate(args, step, frac)
        batch = [x.to(device, non_blocking=True) for x in next(loader)]
        loss, numbers = step_loss(batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        for g in adam.param_groups:
            g["lr"] = lr
        adam.step()
        muon.step(lr)
        head.zero_grad(set_to_none=True)
        step += 1
        if step % args.log_every == 0 or step in (1, 5, 20):
            record = dict(step=step, t=round(time.time() - START, 1), lr=round(lr, 6), loss=round(loss.item(), 4), **{k: [round(x, 4) for x in v.tolist()] for k, v in numbers.items()})
            if not math.isfinite(record["loss"]):
                raise SystemExit("the loss is not finite")
            log.append(record)
            print(json.dumps(record), flush=True)
    seconds = time.time() - START
    out = pathlib.Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    save_file({k: v.detach().to(torch.bfloat16).cpu().contiguous() for k, v in head.state_dict().items()}, str(out / file), metadata={"format": "pt"})
    (out / (file.split(".")[0] + ".json")).write_text(json.dumps(dict(args=vars(args), steps=step, tokens=step * args.batch * args.length, seconds=seconds, log=log), indent=1))
    print(f"{step} steps, {step * args.batch * args.length / 1e6:.1f} M tokens, {seconds:.0f} s", flush=True)
