#!/usr/bin/env python3
"""Whether speculation is ever slower: every source, in memory and streamed, against plain decoding.

    cargo build --release
    benches/never_slower.py                       # Pebble, and 12 layers of Qwen3.5-35B-A3B: 9 GB with what drafts
    benches/never_slower.py --only pebble --pairs 10

A cell is a source (prompt lookup, draft model, MTP, DFlash, or an oracle that is right with a set chance) and a share
of the experts in memory. `millstream bench --pairs` decodes the same answers with drafts and without, in turns, in
one process, and checks that they are equal. A cell's ratio is speed with drafts over speed without; the interval
is a bootstrap of the mean over pairs (5 % and 95 %). A cell fails if even the upper end is below 0.97.

The synthetic model has made-up weights and answers noise with noise; so do its draft model (as many layers of
Qwen3.5-0.8B in proportion) and its heads, which have the sizes of published ones. None of them is ever right: they are
there to cost nothing. Writes results/<date>-speculation-<machine>.json and .md, and exits 1 if a cell fails.
"""

import argparse
import datetime
import json
import random
import statistics
import subprocess
import sys

import peer
from compare_llama import machine

ORACLES = (0.9, 0.5, 0.0)
SHARES = (1.0, 0.6, 0.3, 0.1)
LEAST = 0.97


def sources(draft, dflash):
    """Name and options of each source, with this draft model and this DFlash draft."""
    return [("prompt lookup", []), ("draft model", ["--draft-model", draft]), ("MTP", ["--mtp"]),
            ("DFlash", ["--dflash", dflash]), *((f"oracle {chance}", ["--oracle", chance]) for chance in ORACLES)]


def interval(ratios):
    """Mean, and where it lies with 90 % confidence."""
    draw = random.Random(1)
    means = sorted(statistics.fmean(draw.choices(ratios, k=len(ratios))) for _ in range(2000))
    return statistics.fmean(ratios), means[100], means[1899]


def measure(args, model, experts, source, share):
    """The pairs of one cell."""
    options = [] if share == 1.0 else ["--expert-slots", max(int(experts * share), 16), "--stream-experts", "always"]
    prompts = ["--prompts", peer.HERE / "prompts.txt"] if model["prompts"] else ["--prompt-tokens", 64]
    command = [args.millstream, "bench", model["path"], "--pairs", args.pairs, "--gen-tokens", model["tokens"],
               "--threads", args.threads, "--json", *prompts, *options, *source]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout)


def save(args, cells):
    """Writes what was measured so far; the lines of the page."""
    failed = [cell for cell in cells if cell["high"] < LEAST]
    m = machine()
    facts = (f"{peer.facts(m)}; "
             f"{args.threads} threads.")
    lines = [f"# Speculation against plain decoding, {datetime.date.today()}", "", facts, "",
             f"Speed with drafts over speed without: mean of {args.pairs} interleaved pairs, 90 % interval of the mean. "
             f"{len(cells)} cells, {len(failed)} with an upper end below {LEAST}.", "",
             "| model | source | experts in memory | ratio | 90 % interval | tokens a pass |", "|---|---|---|---|---|---|"]
    for cell in cells:
        lines.append(f"| {cell['model']} | {cell['source']} | {cell['share']:.0%} | {cell['ratio']:.3f} | "
                     f"{cell['low']:.3f} – {cell['high']:.3f} | {cell['tokens_per_pass']:.2f} |")
    lines += ["", f"Made by `{peer.command_line('never_slower.py')}`.", ""]
    args.results.mkdir(parents=True, exist_ok=True)
    name = args.results / f"{datetime.date.today()}-speculation-{args.machine}"
    name.with_suffix(".md").write_text("\n".join(lines))
    name.with_suffix(".json").write_text(json.dumps({"machine": {**m, "host": args.machine}, "cells": cells}, indent=1) + "\n")
    return lines


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--only", choices=("pebble", "synthetic"), help="one of the two models")
    a.add_argument("--sources", help="names of sources, separated by commas")
    a.add_argument("--shares", default=",".join(map(str, SHARES)), help="shares of the experts [%(default)s]")
    peer.model_options(a)
    a.add_argument("--draft-like", default="qwen3.5-0.8b", help="shape of the synthetic model's draft model [%(default)s]")
    a.add_argument("--draft-layers", type=int, default=8, help="layers of it; 24 go with the 40 of the whole [%(default)s]")
    a.add_argument("--pairs", type=int, default=10)
    a.add_argument("--gen-tokens", type=int, default=96, help="tokens of an answer of the synthetic model")
    a.add_argument("--threads", type=int, default=2)
    peer.report_options(a)
    args = a.parse_args()

    models = []
    if args.only != "synthetic":
        models.append({"name": "Pebble", "path": peer.HERE.parent / "models" / "pebble", "prompts": True,
                       "tokens": 160, "experts": 8 * 32, "sources": sources("pebble-draft", "pebble-dflash")})
    if args.only != "pebble":
        mlx, _ = peer.synthesize(args.millstream, args.like, args.layers, args.seed, args.models, formats=("mlx",))
        draft, _ = peer.synthesize(args.millstream, args.draft_like, args.draft_layers, args.seed, args.models,
                                   formats=("mlx",))
        dflash = peer.synthesize_heads(args.millstream, args.like, args.layers, args.seed, mlx)
        config = json.loads((mlx / "config.json").read_text())
        config = config.get("text_config", config)
        models.append({"name": f"{args.layers} layers of {args.like}", "path": mlx, "prompts": False,
                       "tokens": args.gen_tokens, "experts": config["num_hidden_layers"] * config["num_experts"],
                       "sources": sources(draft, dflash)})
    wanted = args.sources.split(",") if args.sources else None
    cells = []
    for model in models:
        for name, options in model["sources"]:
            if wanted and name not in wanted:
                continue
            for share in map(float, args.shares.split(",")):
                report = measure(args, model, model["experts"], options, share)
                mean, low, high = interval([pair["ratio"] for pair in report["pairs"]])
                cell = {"model": model["name"], "source": name, "share": share, "ratio": mean, "low": low, "high": high,
                        "tokens_per_pass": report["tokens_per_pass"], "accepted": report["accepted_drafts"],
                        "rejected": report["rejected_drafts"], "pairs": report["pairs"],
                        "speculation": report["speculation"]}
                cells.append(cell)
                print(f"{model['name']}, {name}, {share:.0%}: {mean:.3f} ({low:.3f} – {high:.3f}), "
                      f"{cell['tokens_per_pass']:.2f} tokens a pass", flush=True)
                # A run that is cut short keeps its cells.
                save(args, cells)

    print("\n".join(save(args, cells)))
    sys.exit(1 if any(cell["high"] < LEAST for cell in cells) else 0)


if __name__ == "__main__":
    main()
