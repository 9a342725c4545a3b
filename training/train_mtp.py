"""Train Pebble's multi-token prediction head on one CUDA GPU.

    python train_mtp.py --out heads --minutes 7.6

Every index of a row starts a draft of `--unroll` steps at once, as decoding does it: step 1 is given the target's
hidden states, the later steps the head's own; each step sees the true entries up to where the draft began and the
entries that the draft itself wrote. The tokens fed are the corpus's. Now and then (`--forget`) the hidden state
is zero, as for the first token of a text and for a conversation that is continued later.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

import data
import heads


def main():
    ap = heads.arguments()
    ap.add_argument("--unroll", type=int, default=4)
    ap.add_argument("--discount", type=float, default=0.8, help="weight of a step relative to the one before")
    ap.add_argument("--forget", type=float, default=0.02, help="share of hidden states replaced by zero")
    ap.add_argument("--aux", type=float, default=0.01)
    args = ap.parse_args()
    cuda = torch.cuda.is_available()
    device, dtype = ("cuda", torch.bfloat16) if cuda else ("cpu", torch.float32)
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    target = heads.load_target(device, dtype)
    head = heads.Mtp(target.config).to(device)
    head.init_from(target)
    embedding = target.model.embed_tokens.weight
    classes = torch.from_numpy(data.WEIGHTS).to(device)
    distil = heads.distil
    if cuda:
        for layer in target.model.layers:
            layer.compile(dynamic=False)
        head.compile(dynamic=False)
        distil = torch.compile(distil, dynamic=False)

    def step_loss(batch):
        tok, _, cls, pos, doc = batch
        masks = [heads.mtp_mask(doc, s) for s in range(1, args.unroll + 1)]
        with torch.no_grad():
            truth, _ = target.features(tok, pos, masks[0])
        emb = F.embedding(tok, embedding).to(dtype)
        shifted = lambda x: F.pad(x, (0, 0, 1, 0))[:, :-1]  # the state of the token before
        keep = (pos > 0) & (torch.rand(pos.shape, device=device) >= args.forget)
        hid = shifted(truth) * keep[..., None]
        weight = classes[cls.long()]
        keys, values, loss, agree, scale = [], [], 0.0, [], 0.0
        for s in range(args.unroll):
            out, k, v, aux = head(emb, hid, pos, keys, values, masks[s])
            keys, values = [*keys, k], [*values, v]
            w = weight * (pos >= s)
            part, a = distil(out.flatten(0, 1), truth.flatten(0, 1), embedding, w.flatten(), args.hard)
            factor = args.discount**s
            loss, scale = loss + factor * (part + args.aux * aux), scale + factor
            agree.append(a)
            hid = shifted(out)
        return loss / scale, dict(agree=torch.stack(agree))

    heads.train(head, target, step_loss, args, "mtp.safetensors")


if __name__ == "__main__":
    main()
