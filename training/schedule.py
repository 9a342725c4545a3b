"""How long a run is and how fast it learns: the options that every training program here has, and the rate over the run."""

from __future__ import annotations

import argparse


def arguments(lr, decay_from, seed):
    """A parser with the options that all runs share; the defaults that differ are the caller's."""
    ap = argparse.ArgumentParser()
    ap.add_argument("--out", required=True)
    ap.add_argument("--minutes", type=float, default=9.0, help="whole run, all included")
    ap.add_argument("--steps", type=int, default=0, help="fix the number of steps instead of the time")
    ap.add_argument("--batch", type=int, default=16)
    ap.add_argument("--length", type=int, default=4096)
    ap.add_argument("--lr", type=float, default=lr)
    ap.add_argument("--warmup", type=int, default=100)
    ap.add_argument("--decay-from", type=float, default=decay_from)
    ap.add_argument("--seed", type=int, default=seed)
    ap.add_argument("--workers", type=int, default=14)
    ap.add_argument("--log-every", type=int, default=100)
    ap.add_argument("--resume", help="weights to start from")
    return ap


def rate(args, step, frac):
    """The learning rate at a step, when a share `frac` of the run is over: up by steps, down by share."""
    lr = args.lr * min(1.0, (step + 1) / args.warmup)
    if frac > args.decay_from:
        lr *= max(0.01, (1 - frac) / (1 - args.decay_from))
    return lr
