"""Decode with Pebble and its draft heads as an engine does, and count what is accepted.

    python evaluate_heads.py --items 24 --out heads-eval.json
    python evaluate_heads.py --mtp heads/mtp.safetensors --dflash heads/dflash.safetensors      # as train_*.py wrote them

Greedy, fp32, the target with its dequantized 4-bit weights. First the target writes each answer, with DFlash drafting and a
full pass verifying every block. Then each head drafts against that answer, round by round: draft, accept up to the first
difference, continue after the target's own token. What a head is given of committed tokens does not depend on the drafts.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import random

import torch
import torch.nn.functional as F
from safetensors.torch import load_file

import configs
import corpus
import data
import heads
import model as M

STOP = (4080, 4082)
# family: evaluation tasks, or None for the first turn of a conversation of that family
FAMILIES = {
    "story": None, "recall": ["recall_256", "recall_512", "recall_1024", "recall_2048", "recall_3584"], "fact": ["fact"], "arith": ["add2", "add3", "sub", "mul"],
    "think": ["think_arith"], "string": ["string"], "memory": ["memory"], "tool": ["tool_call", "tool_final"], "json": ["json"], "code": ["code"], "creative": None, "identity": ["identity"],
}


def prompts(family, count, seed):
    rng = random.Random(f"heads-{seed}-{family}")
    for i in range(count):
        tasks = FAMILIES[family]
        if tasks:
            conv = corpus.eval_item(rng, tasks[i % len(tasks)])
        else:
            conv = corpus.conversation(rng, family=family, thinking=False)
            last = next(n for n, m in enumerate(conv.messages) if m["role"] == "assistant")
            conv.messages = conv.messages[: last + 1]
        yield corpus.prompt_and_answer(conv)[0]


@torch.no_grad()
def features(target, tokens):
    """Final hidden states [T, D] and taps of every token, in one pass."""
    ids = torch.tensor([tokens + [0] * (-len(tokens) % M.CHUNK)])
    hidden, taps = target.features(ids, torch.arange(ids.shape[1])[None], M.dense_mask(torch.zeros_like(ids)), heads.TAPS)
    return hidden[0, : len(tokens)], taps[0, : len(tokens)]


@torch.no_grad()
def greedy(target, dflash, prompt, limit):
    """What the target writes after the prompt. DFlash drafts, so that few passes are needed; each pass verifies."""
    hidden, taps = features(target, prompt)
    tokens = prompt + [target.logits(hidden[-1]).argmax().item()]
    while tokens[-1] not in STOP and len(tokens) - len(prompt) < limit:
        n = len(tokens) - 1  # committed; the last token is the anchor
        drafts = dflash_drafter(dflash, target, tokens, taps[:n], heads.BLOCK)(n)
        hidden, taps = features(target, tokens + drafts)
        for i, best in enumerate(target.logits(hidden[n:]).argmax(-1).tolist()):
            tokens.append(best)
            if best in STOP or i == len(drafts) or best != drafts[i]:
                break
    return tokens[len(prompt) : len(prompt) + limit]


def rounds(first, answer_end, tokens, draft):
    """Accepted drafts of each round. tokens[first] is the first token of the answer; draft(n) continues after token n."""
    n, accepted = first, []
    while n < answer_end - 1:
        a = 0
        for d in draft(n):
            if n + 1 + a >= answer_end or d != tokens[n + 1 + a]:
                break
            a += 1
        accepted.append(a)
        n += a + 1
    return accepted


@torch.no_grad()
def mtp_drafter(head, target, tokens, hidden, steps):
    """hidden [T, D] after the final norm. Returns draft(n)."""
    embedding = target.model.embed_tokens.weight
    emb = embedding[tokens][None]
    t = len(tokens)
    causal = torch.ones(t, t, dtype=torch.bool).tril()[None, None]
    out, keys, values, _ = head(emb, F.pad(hidden, (0, 0, 1, 0))[None, :-1], torch.arange(t)[None], [], [], causal)

    def draft(n):
        k, v, hid = keys[:, :, : n + 1], values[:, :, : n + 1], out[0, n]  # the true entries, this index included
        drafts = []
        for i in range(n + 1, n + 1 + steps):
            drafts.append(target.logits(hid).argmax().item())
            if len(drafts) == steps:
                break
            seen = torch.ones(1, 1, 1, k.shape[2] + 1, dtype=torch.bool)
            h, k1, v1, _ = head(embedding[drafts[-1]][None, None], hid[None, None], torch.tensor([[i]]), [k], [v], seen)
            k, v, hid = torch.cat([k, k1], 2), torch.cat([v, v1], 2), h[0, 0]
        return drafts

    return torch.no_grad()(draft), out[0]


@torch.no_grad()
def dflash_drafter(head, target, tokens, taps, block):
    embedding = target.model.embed_tokens.weight
    ctx = head.context(taps[None])

    def draft(n):
        emb = torch.cat([embedding[tokens[n]][None], embedding[heads.MASK_TOKEN].expand(block - 1, -1)])[None]
        out = head(emb, torch.arange(n, n + block)[None], ctx[:, :n], torch.arange(n)[None], torch.ones(1, 1, block, n + block, dtype=torch.bool))
        return target.logits(out[0, 1:]).argmax(-1).tolist()

    return torch.no_grad()(draft)


def load_heads(mtp_path, dflash_path):
    config = configs.pebble()
    mtp = heads.Mtp(config)
    path = pathlib.Path(mtp_path)
    raw = load_file(str(path))
    state = heads.from_mlx(path.parent, "mtp.", path.name) if any(k.startswith("mtp.") for k in raw) else {k: v.float() for k, v in raw.items()}
    mtp.load_state_dict(state)
    dflash = heads.DFlash(heads.dflash_config())
    dflash.load_state_dict({k: v.float() for k, v in load_file(str(dflash_path)).items()})
    return mtp.eval(), dflash.eval()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--mtp", default=heads.TARGET / "mtp.safetensors")
    ap.add_argument("--dflash", default=heads.TARGET.parent / "pebble-dflash" / "model.safetensors")
    ap.add_argument("--items", type=int, default=24, help="prompts per family")
    ap.add_argument("--limit", type=int, default=160, help="longest answer")
    ap.add_argument("--seed", type=int, default=777)
    ap.add_argument("--out", default="heads-eval.json")
    args = ap.parse_args()
    encoder = data.Encoder(str(heads.TARGET / "tokenizer.json"))
    target = heads.load_target("cpu", torch.float32)
    mtp, dflash = load_heads(args.mtp, args.dflash)
    table = {}
    for family in FAMILIES:
        first = 0
        runs = {"mtp4": [], "dflash16": [], "dflash8": []}
        tokens_out = 0
        for text in prompts(family, args.items, args.seed):
            prompt = encoder.ids(text)
            tokens = prompt + greedy(target, dflash, prompt, args.limit)
            hidden, taps = features(target, tokens)
            start, end = len(prompt), len(tokens)
            draft, out = mtp_drafter(mtp, target, tokens, hidden, 4)
            best = target.logits(out[start : end - 1]).argmax(-1).tolist()
            first += sum(a == b for a, b in zip(best, tokens[start + 1 :]))
            runs["mtp4"] += rounds(start, end, tokens, draft)
            for b in (16, 8):
                runs[f"dflash{b}"] += rounds(start, end, tokens, dflash_drafter(dflash, target, tokens, taps, b))
            tokens_out += end - start - 1
        row = dict(items=args.items, tokens=tokens_out, mtp_first=round(first / tokens_out, 4))
        for name, r in runs.items():
            row[name] = dict(rounds=len(r), accepted=round(sum(r) / len(r), 3), tokens_per_pass=round(tokens_out / len(r), 3))
        table[family] = row
        print(f"{family:9s} {tokens_out:6d} tokens  mtp first {row['mtp_first']:.3f}  " + "  ".join(f"{n} {row[n]['accepted']:.2f} accepted, {row[n]['tokens_per_pass']:.2f} per pass" for n in runs), flush=True)
    pathlib.Path(args.out).write_text(json.dumps(table, indent=1))


if __name__ == "__main__":
    main()
