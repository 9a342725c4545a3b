"""Train Pebble's DFlash block draft on one CUDA GPU.

    python train_dflash.py --out heads --minutes 9.45

Each row of corpus text gets `--anchors` blocks that begin at random assistant tokens. Slot k of a block is to say
what the target would write there. That is known from corpus text as long as the corpus wrote what the target would
have written since the anchor; the slots after the first difference do not count.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

import heads


def pick_anchors(cls, pos, n):
    """n indices per row [B, N], sorted, among assistant tokens that have a token before and after them."""
    ok = F.pad(cls[:, :-1] == 2, (1, 0)) & (pos > 0) & (cls == 2)
    weight = ok.float() + 1e-9  # a row always has some, the rest is for form
    return torch.multinomial(weight, n, replacement=True).sort(1).values


def main():
    ap = heads.arguments()
    ap.add_argument("--anchors", type=int, default=384, help="blocks per row")
    ap.add_argument("--gamma", type=float, default=7.0, help="weight of slot k is exp(-(k - 1) / gamma)")
    args = ap.parse_args()
    cuda = torch.cuda.is_available()
    device, dtype = ("cuda", torch.bfloat16) if cuda else ("cpu", torch.float32)
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    target = heads.load_target(device, dtype)
    head = heads.DFlash(heads.dflash_config()).to(device)
    embedding = target.model.embed_tokens.weight
    mask_token = embedding[heads.MASK_TOKEN].to(dtype)
    distil = heads.distil
    if cuda:
        for layer in [*target.model.layers, *head.layers]:
            layer.compile(dynamic=False)
        distil = torch.compile(distil, dynamic=False)
    slots = torch.arange(heads.BLOCK, device=device)
    decay = torch.exp(-(slots - 1) / args.gamma) * (slots > 0)
    rows = torch.arange(args.batch, device=device)[:, None, None]

    def step_loss(batch):
        tok, _, cls, pos, doc = batch
        with torch.no_grad():
            truth, taps = target.features(tok, pos, heads.mtp_mask(doc, 1), heads.TAPS)
            best = target.logits(truth).argmax(-1)
            anchors = pick_anchors(cls, pos, args.anchors)
            at = anchors[..., None] + slots  # [B, N, BLOCK], may run past the document
            inside = at < tok.shape[1]
            at = at.clamp(max=tok.shape[1] - 1)
            inside &= doc[rows, at] == doc[rows, anchors[..., None]]
            before = (at - 1).clamp(min=0)  # whose logits decide the slot
            same = (tok[rows, at] == best[rows, before]) | (slots == 0)  # the anchor is given
            reached = F.pad(same[..., :-1].long().cumprod(-1), (1, 0), value=1).bool()
            weight = decay * (inside & reached)
            first = F.embedding(tok[rows[..., 0], anchors], embedding).to(dtype)
            emb = torch.where((slots == 0)[:, None], first[:, :, None], mask_token).flatten(1, 2)
            block_pos = (pos[rows, anchors[..., None]] + slots).flatten(1)
            mask = heads.dflash_mask(doc, anchors)
        out = head(emb, block_pos, head.context(taps), pos, mask).unflatten(1, (-1, heads.BLOCK))
        pick = lambda x: x[:, :, 1:].flatten(0, 2)
        loss, _ = distil(pick(out), pick(truth[rows, before]), embedding, pick(weight), args.hard)
        with torch.no_grad():  # mean accepted drafts over blocks the corpus follows to the end, and agreement slot by slot
            right = target.logits(out[:, ::8]).argmax(-1) == best[rows, before][:, ::8]
            live = (weight > 0)[:, ::8]
            slot = (right & live).sum((0, 1)) / live.sum((0, 1)).clamp(min=1)
            whole = live[..., 1:].all(-1)
            run = right[..., 1:].long().cumprod(-1).sum(-1)
            length = (run * whole).sum() / whole.sum().clamp(min=1)
        return loss, dict(slot=slot[[1, 2, 3, 5, 8, 12, 15]], accepted=length[None], whole=whole.float().mean()[None])

    heads.train(head, target, step_loss, args, "dflash.safetensors")


if __name__ == "__main__":
    main()
