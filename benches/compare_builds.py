#!/usr/bin/env python3
"""Whether a change costs speed: `bench` of the build before it, of the same build again, and of the build with it, in turns.

    git worktree add /tmp/before COMMIT && (cd /tmp/before && cargo build --release)
    cargo build --release
    benches/compare_builds.py /tmp/before/target/release/millstream    # 12 layers of Qwen3.5-35B-A3B, 7 GB, which must fit

Each round runs all three, which take another order in each. Runs of one build differ too; how much is what the ratio of
new to old is held against. Demanded: the median of new over old is at least 0.97 and within the range of old over old.
Writes results/<date>-builds-<machine>.json and .md; exits 1 where the demand is not met.
"""

import argparse
import datetime
import json
import os
import pathlib
import statistics
import sys

import peer
from compare_llama import machine, warm

METRICS = ("prefill_tok_s", "decode_tok_s")
# Each is first, second and last equally often, so that a machine that gets slower favours none.
ORDERS = (("old", "new", "again"), ("new", "old", "again"), ("old", "again", "new"))
LEAST_RATIO = 0.97


def time_build(options, model, build):
    program = options.millstream if build == "new" else options.old
    report = json.loads(peer.run([program, "bench", model, "--threads", options.threads, "--json",
                                  "--prompt-tokens", options.prompt_tokens, "--gen-tokens", options.gen_tokens,
                                  "--repeat", options.repeat]))
    (run,) = report["runs"]
    return {metric: run[metric] for metric in METRICS} | {"isa": report["isa"]}


def summary(rounds):
    result = {}
    for metric in METRICS:
        old, again, new = ([done[build][metric] for done in rounds] for build in ("old", "again", "new"))
        # Both runs of the old build stand for it: neither is closer to the new one in time.
        ratios = [n / statistics.fmean((o, a)) for n, o, a in zip(new, old, again)]
        noise = sorted(ratio for o, a in zip(old, again) for ratio in (o / a, a / o))
        ratio = statistics.median(ratios)
        result[metric] = {
            "old": statistics.median(old + again), "new": statistics.median(new), "ratio": ratio,
            "ratios": [min(ratios), max(ratios)], "noise": [noise[0], noise[-1]],
            "holds": ratio >= LEAST_RATIO and ratio >= noise[0],
        }
    return result


def page(report):
    m, rows = report["machine"], []
    for metric, what in (("prefill_tok_s", f"prefill {report['prompt_tokens']}"),
                         ("decode_tok_s", f"decode {report['gen_tokens']}")):
        r = report["summary"][metric]
        rows.append(f"| {what} | {r['old']:.2f} | {r['new']:.2f} | {r['ratio']:.3f} ({r['ratios'][0]:.3f} – {r['ratios'][1]:.3f}) | "
                    f"{r['noise'][0]:.3f} – {r['noise'][1]:.3f} | {'yes' if r['holds'] else 'NO'} |")
    return "\n".join([
        f"# Two builds in turns: {report['model']}, {report['date']}", "",
        f"{peer.facts(m)}; "
        f"{report['threads']} threads, {len(report['rounds'])} rounds in turns, best of {report['repeat']} in each run; "
        f"load before: {report['load_before']:.2f} ({report['isa']}). Old is {report['before']}, new {report['after']}.", "",
        "| tokens/s, median | old | new | new / old (least – most) | old / old | holds |", "|---|---|---|---|---|---|", *rows, "",
        f"Made by `{report['command']}`.", ""])


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("old", help="`millstream` of the build before")
    a.add_argument("--before", default="the build before", help="what the old build is, for the page: a commit")
    a.add_argument("--after", default="the build with the change", help="what the new one is")
    peer.model_options(a)
    a.add_argument("--model", type=pathlib.Path, help="a folder that exists, instead of synth")
    a.add_argument("--prompt-tokens", type=int, default=512)
    a.add_argument("--gen-tokens", type=int, default=64)
    a.add_argument("--threads", type=int, default=os.cpu_count())
    a.add_argument("--rounds", type=int, default=9, help="whole threes are fairest [%(default)s]")
    a.add_argument("--repeat", type=int, default=2, help="times each run measures, keeping its best")
    peer.report_options(a)
    options = a.parse_args()
    model = options.model or peer.synthesize(options.millstream, options.like, options.layers, options.seed,
                                             options.models, formats=("mlx",))[0]
    load_before = peer.load()
    warm(model)
    rounds = []
    for number in range(options.rounds):
        done = {build: time_build(options, model, build) for build in ORDERS[number % len(ORDERS)]}
        rounds.append(done)
        print(f"round {number + 1}: " + ", ".join(
            f"{metric.removesuffix('_tok_s')} " + " : ".join(f"{done[build][metric]:.2f}" for build in ("old", "again", "new"))
            for metric in METRICS), file=sys.stderr, flush=True)
    date = datetime.date.today().isoformat()
    report = {
        "date": date, "machine": machine(), "model": model.name, "threads": options.threads,
        "prompt_tokens": options.prompt_tokens, "gen_tokens": options.gen_tokens, "repeat": options.repeat,
        "load_before": load_before, "before": options.before, "after": options.after,
        "isa": rounds[0]["new"]["isa"], "command": peer.command_line("compare_builds.py"),
        "summary": summary(rounds), "rounds": rounds,
    }
    peer.keep(options.results, f"{date}-builds-", options.machine, report, page(report))
    sys.exit(0 if all(r["holds"] for r in report["summary"].values()) else 1)


if __name__ == "__main__":
    main()
