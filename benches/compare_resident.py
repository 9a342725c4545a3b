#!/usr/bin/env python3
"""What a model that fits in memory pays for being able to stream: `bench` in auto against `--stream-experts never`.

    cargo build --release
    benches/compare_resident.py                       # 12 layers of Qwen3.5-35B-A3B, 7 GB, which must fit
    benches/compare_resident.py --model FOLDER --rounds 9

Each round runs the program three times: twice in auto and once with `--stream-experts never`, which takes another place
among the three in each round. Two runs of the same command differ too; that is what the difference between auto and
never is held against. Nothing streams in any of them, or the script ends. Differences are shares of the round's mean;
of auto and never it is the mean of both pairs of a round. Writes results/<date>-resident-<machine>.json and .md.
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
WAYS = {"auto": [], "never": ["--stream-experts", "never"], "again": []}
# Each way is first, second and last equally often, so that a machine that gets slower favours no way.
ORDERS = (("auto", "never", "again"), ("never", "auto", "again"), ("auto", "again", "never"))


def time_way(options, model, way):
    report = json.loads(peer.run([options.millstream, "bench", model, "--threads", options.threads, "--json",
                                  "--prompt-tokens", options.prompt_tokens, "--gen-tokens", options.gen_tokens,
                                  "--repeat", options.repeat, *WAYS[way], *options.bench_option]))
    (run,) = report["runs"]
    if "hit_rate" in run:
        sys.exit("error: experts came from the disk: the model does not fit in memory")
    return {metric: run[metric] for metric in METRICS} | {"isa": report["isa"]}


def differences(done, metric):
    """Of one round, as shares of its mean: (auto and never, auto and auto again)."""
    auto, never, again = (done[way][metric] for way in ("auto", "never", "again"))
    mean = statistics.fmean((auto, never, again))
    return (abs(auto - never) + abs(again - never)) / 2 / mean, abs(auto - again) / mean


def summary(rounds):
    result = {}
    for metric in METRICS:
        other, same = zip(*(differences(done, metric) for done in rounds))
        auto = [statistics.fmean((done["auto"][metric], done["again"][metric])) for done in rounds]
        never = [done["never"][metric] for done in rounds]
        result[metric] = {
            "auto": statistics.median(auto), "never": statistics.median(never),
            "ratio": statistics.median(a / n for a, n in zip(auto, never)),
            "auto_never": {"median": statistics.median(other), "most": max(other)},
            "auto_auto": {"median": statistics.median(same), "most": max(same)},
        }
    return result


def page(report):
    m, rows = report["machine"], []
    for metric, what in (("prefill_tok_s", f"prefill {report['prompt_tokens']}"),
                         ("decode_tok_s", f"decode {report['gen_tokens']}")):
        r = report["summary"][metric]
        rows.append(f"| {what} | {r['auto']:.2f} | {r['never']:.2f} | {r['ratio']:.3f} | "
                    f"{100 * r['auto_never']['median']:.2f} % ({100 * r['auto_never']['most']:.2f}) | "
                    f"{100 * r['auto_auto']['median']:.2f} % ({100 * r['auto_auto']['most']:.2f}) |")
    return "\n".join([
        f"# In memory, with and without streaming: {report['model']}, {report['date']}", "",
        f"{peer.facts(m)}; "
        f"{report['threads']} threads, {len(report['rounds'])} rounds in turns, best of {report['repeat']} in each run; "
        f"load before: {report['load_before']:.2f}. millstream {report['millstream']} ({report['isa']}).", "",
        "| tokens/s, median | auto | never | ratio | auto and never differ by: median (most) | auto and auto again |",
        "|---|---|---|---|---|---|", *rows, "", f"Made by `{report['command']}`.", ""])


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    peer.model_options(a)
    a.add_argument("--model", type=pathlib.Path, help="a folder that exists, instead of synth")
    a.add_argument("--prompt-tokens", type=int, default=512)
    a.add_argument("--gen-tokens", type=int, default=64)
    a.add_argument("--threads", type=int, default=os.cpu_count())
    a.add_argument("--rounds", type=int, default=6, help="whole threes are fairest [%(default)s]")
    a.add_argument("--repeat", type=int, default=3, help="times each run measures, keeping its best")
    a.add_argument("--bench-option", action="append", default=[], help="passed on to `millstream bench`")
    peer.report_options(a)
    options = a.parse_args()
    model = options.model or peer.synthesize(options.millstream, options.like, options.layers, options.seed,
                                             options.models, formats=("mlx",))[0]
    load_before = peer.load()
    warm(model)
    rounds = []
    for number in range(options.rounds):
        done = {way: time_way(options, model, way) for way in ORDERS[number % len(ORDERS)]}
        rounds.append(done)
        print(f"round {number + 1}: " + ", ".join(
            f"{metric.removesuffix('_tok_s')} " + " : ".join(f"{done[way][metric]:.2f}" for way in WAYS)
            for metric in METRICS), file=sys.stderr, flush=True)
    date = datetime.date.today().isoformat()
    report = {
        "date": date, "machine": machine(), "model": model.name, "threads": options.threads,
        "prompt_tokens": options.prompt_tokens, "gen_tokens": options.gen_tokens, "repeat": options.repeat,
        "load_before": load_before, "millstream": peer.run([options.millstream, "--version"]).split()[-1],
        "isa": rounds[0]["auto"]["isa"], "command": peer.command_line("compare_resident.py"),
        "summary": summary(rounds), "rounds": rounds,
    }
    peer.keep(options.results, f"{date}-resident-", options.machine, report, page(report))


if __name__ == "__main__":
    main()
