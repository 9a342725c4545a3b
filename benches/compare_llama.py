#!/usr/bin/env python3
"""millstream against llama.cpp on the same machine, threads and weights, in turns.

    pip install xllamacpp gguf
    cargo build --release
    benches/compare_llama.py                     # 12 layers of Qwen3.5-35B-A3B, 7 GB for each format
    benches/compare_llama.py --like qwen3-30b-a3b --layers 14 --rounds 5

Each round loads and times the one, then the other (A B A B …), with nothing else of ours running:
prefill of --prompt-tokens and decoding of --gen-tokens after it, random tokens in both, so that
routing does not settle on the experts of a repeated token. Both repeat that --repeat times in a
round and keep their best, as `millstream bench` does. Speeds are medians over rounds, ratios are
medians of the rounds' ratios. The model files are read once before, so that both find them in
the page cache. Writes results/<date>-<machine>.json and .md.
"""

import argparse
import datetime
import json
import os
import pathlib
import platform
import random
import re
import statistics
import sys

import peer

METRICS = ("prefill_tok_s", "decode_tok_s")


def machine():
    def first(pattern, path):
        try:
            found = re.search(pattern, pathlib.Path(path).read_text(), re.MULTILINE)
            return found.group(1).strip() if found else None
        except OSError:
            return None

    flags = (first(r"^flags\s*:(.*)$", "/proc/cpuinfo") or "").split()
    memory = first(r"^MemTotal:\s*(\d+)", "/proc/meminfo")
    return {
        "host": platform.node(), "system": f"{platform.system()} {platform.release()}",
        "cpu": first(r"^model name\s*:(.*)$", "/proc/cpuinfo") or platform.processor(),
        "cores": os.cpu_count(),
        "memory_gb": round(int(memory) * 1024 / 1e9, 1) if memory else None,
        "instructions": [f for f in ("avx2", "avx512f", "avx512_vnni", "amx_int8", "asimd", "asimddp") if f in flags],
        "huge_pages": first(r"\[(\w+)\]", "/sys/kernel/mm/transparent_hugepage/enabled"),
    }


def warm(path):
    """Reads a file, or all files of a folder, into the page cache."""
    files = [path] if path.is_file() else [f for f in path.iterdir() if f.is_file()]
    for file in files:
        with open(file, "rb", buffering=0) as opened:
            while opened.read(64 << 20):
                pass


def time_ours(options, mlx):
    report = json.loads(peer.run([options.millstream, "bench", mlx, "--threads", options.threads, "--json",
                                  "--prompt-tokens", options.prompt_tokens, "--gen-tokens", options.gen_tokens,
                                  "--repeat", options.repeat, *options.bench_option]))
    (run,) = report["runs"]
    return run | {"memory_bandwidth": report["memory_bandwidth"], "isa": report["isa"]}


def time_llama(options, gguf):
    llama = peer.Llama(options.python, gguf, options.threads, options.prompt_tokens + options.gen_tokens + 64)
    random.seed(1)
    def prompt(count):
        return [random.randrange(4096) for _ in range(count)]
    # A first answer, so that pages are mapped, buffers have their size and threads are awake.
    llama.ask(op="time", prompt=prompt(64), gen_tokens=2)
    runs = [llama.ask(op="time", prompt=prompt(options.prompt_tokens), gen_tokens=options.gen_tokens)
            for _ in range(options.repeat)]
    llama.close()
    return {metric: max(run[metric] for run in runs) for metric in METRICS} | {"build": llama.build}


def summary(rounds):
    def of(side, metric):
        return [r[side][metric] for r in rounds]
    result = {}
    for metric in METRICS:
        ratios = [a / b for a, b in zip(of("millstream", metric), of("llama", metric))]
        result[metric] = {
            "millstream": statistics.median(of("millstream", metric)), "llama": statistics.median(of("llama", metric)),
            "ratio": statistics.median(ratios), "ratio_least": min(ratios), "ratio_most": max(ratios),
        }
    result["bandwidth_share"] = statistics.median(of("millstream", "bandwidth_share"))
    result["bandwidth_gb_s"] = statistics.median(of("millstream", "memory_bandwidth")) / 1e9
    return result


def page(report):
    m, s = report["machine"], report["summary"]
    rows = []
    for metric, what in (("prefill_tok_s", f"prefill {report['prompt_tokens']}"),
                         ("decode_tok_s", f"decode {report['gen_tokens']}")):
        r = s[metric]
        rows.append(f"| {what} | {r['millstream']:.1f} | {r['llama']:.1f} | **{r['ratio']:.2f}** | "
                    f"{r['ratio_least']:.2f} – {r['ratio_most']:.2f} |")
    layers = f"first {report['layers']} layers" if report["layers"] else "all layers"
    return "\n".join([
        f"# {report['like']}, {layers}, {report['date']}", "",
        f"{peer.facts(m)}; "
        f"{report['threads']} threads, {len(report['rounds'])} rounds in turns, best of {report['repeat']} in each; load before: {report['load_before']:.2f}.",
        f"millstream {report['millstream']} ({report['isa']}) on MLX affine 4-bit g32; llama.cpp ({report['llama']}) "
        f"on {report['gguf']}.", "",
        "| tokens/s, median | millstream | llama.cpp | ratio | least – most |", "|---|---|---|---|---|", *rows, "",
        f"Decoding moves {100 * s['bandwidth_share']:.0f} % of what a plain read of huge pages does in the same run "
        f"({s['bandwidth_gb_s']:.1f} GB/s).", "",
        f"Made by `{report['command']}`.", ""])


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    peer.model_options(a)
    a.add_argument("--mlx", type=pathlib.Path, help="an MLX folder that exists, instead of synth")
    a.add_argument("--gguf", type=pathlib.Path, help="the same model as a GGUF")
    a.add_argument("--prompt-tokens", type=int, default=512)
    a.add_argument("--gen-tokens", type=int, default=64)
    a.add_argument("--threads", type=int, default=os.cpu_count())
    a.add_argument("--rounds", type=int, default=5)
    a.add_argument("--repeat", type=int, default=3, help="times each measures in a round, keeping its best")
    a.add_argument("--bench-option", action="append", default=[], help="passed on to `millstream bench`")
    a.add_argument("--python", default=sys.executable, help="a Python with xllamacpp")
    peer.report_options(a)
    options = a.parse_args()
    if bool(options.mlx) != bool(options.gguf):
        a.error("--mlx and --gguf go together")
    if options.mlx:
        mlx, gguf = options.mlx, options.gguf
    else:
        mlx, gguf = peer.synthesize(options.millstream, options.like, options.layers, options.seed, options.models)
    # What a file given by hand holds is not ours to say.
    described = gguf.name if options.gguf else "Q4_1: the same weights"
    load_before = peer.load()
    rounds = []
    for number in range(options.rounds):
        # Each finds its own file in the page cache, also where both do not fit.
        warm(mlx)
        ours = time_ours(options, mlx)
        warm(gguf)
        theirs = time_llama(options, gguf)
        rounds.append({"millstream": ours, "llama": theirs})
        print(f"round {number + 1}: " + ", ".join(
            f"{metric.removesuffix('_tok_s')} {ours[metric]:.1f} : {theirs[metric]:.1f} = {ours[metric] / theirs[metric]:.2f}"
            for metric in METRICS), file=sys.stderr, flush=True)
    date = datetime.date.today().isoformat()
    report = {
        "date": date, "machine": machine(), "like": options.like, "layers": options.layers, "threads": options.threads,
        "prompt_tokens": options.prompt_tokens, "gen_tokens": options.gen_tokens, "repeat": options.repeat,
        "load_before": load_before,
        "millstream": peer.run([options.millstream, "--version"]).split()[-1],
        "isa": rounds[0]["millstream"]["isa"], "llama": rounds[0]["llama"]["build"], "gguf": described,
        "command": peer.command_line("compare_llama.py"),
        "summary": summary(rounds), "rounds": rounds,
    }
    peer.keep(options.results, f"{date}-", options.machine, report, page(report))


if __name__ == "__main__":
    main()
