#!/usr/bin/env python3
"""Checks that `--memory` is the truth: a model 2.5 times as large as a kernel memory limit, the budget 64 MiB
below that limit, 512 decoded tokens.

    cargo build --release
    sudo benches/check_under_limit.py                                # 12 layers of Qwen3.5-35B-A3B, 7 GB
    sudo benches/check_under_limit.py --model FOLDER --memory 2G     # another model, another budget
    sudo benches/check_under_limit.py --draft                        # with a draft model that cannot pay

The group is fresh and nothing of the model or the program is in the page cache before, so every page that
the run makes the kernel keep is counted. Prints a line for each demand and exits 1 if one is not met,
77 if this machine cannot say (no root, no memory controller).

`--draft` adds a draft model as large as the model itself, so that the two take five times the limit: the program has
to say so in numbers, continue without it, and meet every other requirement.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys

import disk
import peer
from under_limit import Group, Unavailable, end_cleanly_on_signals, size

ALLOWANCE_BYTES = 64 << 20
TIMES_LARGER = 2.5
CANNOT_SAY = 77
PROMPT = "Tell me a story about a fox and a lantern"


def check(demand, met, figure):
    print(f"{'PASS' if met else 'FAIL'}  {demand}: {figure}", flush=True)
    return met


def limits_kept(counted):
    """What the kernel says."""
    return [
        check("nothing killed for memory", counted["oom_kills"] == 0, counted["oom_kills"]),
        check("no swap", counted["swap_peak_bytes"] == 0 and counted["machine_swapped_out_pages"] == 0,
              f"{counted['swap_peak_bytes']} bytes of the group, {counted['machine_swapped_out_pages']} pages of the machine"),
        check("limit never met (" + ("memory.failcnt" if counted["cgroup"] == 1 else "memory.events: max") + " 0)",
              counted["limit_hits"] == 0,
              f"{counted['limit_hits']} times, {counted['peak_bytes'] / 1e9:.3f} GB at most, "
              f"{counted['anonymous_peak_bytes'] / 1e9:.3f} of it anonymous" if counted["peak_bytes"] else counted["limit_hits"]),
    ]


def judge(options, model_bytes, memory_bytes, done, counted):
    """The demands, one by one; whether all are met."""
    limit_bytes = counted["limit_bytes"]
    results = [
        check(f"model at least {TIMES_LARGER} times the limit", model_bytes >= TIMES_LARGER * limit_bytes,
              f"{model_bytes / 1e9:.2f} GB, {model_bytes / limit_bytes:.2f} times {limit_bytes / 1e9:.2f} GB"),
        check("exit 0", done.returncode == 0, done.returncode),
        *limits_kept(counted),
    ]
    if done.returncode == 0:
        (run,) = json.loads(done.stdout)["runs"]
        results += [
            check(f"{options.gen_tokens} tokens decoded", run.get("gen_tokens") == options.gen_tokens,
                  f"{run.get('gen_tokens')} at {run.get('decode_tok_s', 0):.2f} tokens/s"),
            check("peak_bytes at most --memory", 0 < run.get("peak_bytes", 0) <= memory_bytes,
                  f"{run.get('peak_bytes')} of {memory_bytes}"),
            # Or it was not a model larger than memory at all.
            check("experts were read while decoding", run.get("read_bytes_per_token", 0) > 0,
                  f"{run.get('read_bytes_per_token')} bytes per token, hit rate {run.get('hit_rate')}, "
                  f"bound share {run.get('bound_share')}"),
        ]
    else:
        print(done.stderr[-2000:], file=sys.stderr)
    return all(results)


def judge_draft(options, model_bytes, done, counted):
    """The requirements of a pair that is larger than the limit; whether all of them are met."""
    limit_bytes = counted["limit_bytes"]
    said = [line for line in done.stderr.splitlines() if "continuing without" in line]
    tokens = json.loads(done.stdout)["usage"]["completion_tokens"] if done.returncode == 0 else 0
    return all([
        check("the pair is larger than the limit", model_bytes > limit_bytes, f"{model_bytes / 1e9:.2f} GB, "
              f"{model_bytes / limit_bytes:.2f} times {limit_bytes / 1e9:.2f} GB"),
        check("exit 0", done.returncode == 0, done.returncode if done.returncode == 0 else done.stderr[-2000:]),
        check("a warning in numbers", len(said) == 1 and "together" in said[0], said),
        *limits_kept(counted),
        check(f"{options.gen_tokens} tokens decoded", tokens == options.gen_tokens, tokens),
    ])


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--model", type=pathlib.Path, help="an MLX folder that exists, instead of synth")
    peer.model_options(a)
    a.add_argument("--router", default="uniform", choices=["uniform", "tuned"])
    a.add_argument("--memory", type=size, help="the budget; by default what makes the model 2.5 times the limit")
    a.add_argument("--prompt-tokens", type=int, default=128)
    a.add_argument("--gen-tokens", type=int, default=512)
    a.add_argument("--threads", type=int, default=os.cpu_count())
    a.add_argument("--timeout", type=int, default=1800, help="seconds")
    a.add_argument("--draft", action="store_true", help="with a draft model as large as the model")
    a.add_argument("--bench-option", action="append", default=[], help="passed on to `millstream bench`")
    a.add_argument("--millstream", default=peer.default_millstream())
    options = a.parse_args()
    end_cleanly_on_signals()
    try:
        # Before a model of gigabytes is written for nothing.
        with Group(1 << 30):
            pass
        model = options.model or peer.synthesize(options.millstream, options.like, options.layers, options.seed,
                                                 options.models, options.router, formats=["mlx"])[0]
        model_bytes = sum(f.stat().st_size for f in disk.files_of(model) if f.suffix == ".safetensors")
        memory_bytes = options.memory or int(model_bytes / TIMES_LARGER) - ALLOWANCE_BYTES
        disk.evict(model, options.millstream)
        command = [options.millstream, "bench", model, "--prompt-tokens", options.prompt_tokens, "--gen-tokens",
                   options.gen_tokens, "--repeat", 1, *options.bench_option]
        if options.draft:
            command = [options.millstream, "run", model, PROMPT, "--draft-model", model, "--max-tokens",
                       options.gen_tokens, "--temperature", 0]
        with Group(memory_bytes + ALLOWANCE_BYTES) as group:
            done = group.run([*command, "--memory", memory_bytes, "--threads", options.threads, "--json"],
                             timeout=options.timeout, capture_output=True, text=True)
            counted = group.figures()
    except Unavailable as error:
        print(f"SKIP  {error}")
        sys.exit(CANNOT_SAY)
    except subprocess.TimeoutExpired:
        check(f"done within {options.timeout} s", False, "still running")
        sys.exit(1)
    if options.draft:
        sys.exit(not judge_draft(options, 2 * model_bytes, done, counted))
    sys.exit(not judge(options, model_bytes, memory_bytes, done, counted))


if __name__ == "__main__":
    main()
