#!/usr/bin/env python3
"""Many HTTP clients of millstream against as many of llama.cpp's server, on the same machine, threads and weights, in turns.

    pip install xllamacpp gguf
    cargo build --release
    benches/compare_serving.py                             # 12 layers of Qwen3.5-35B-A3B, 7 GB for each format
    benches/compare_serving.py --like tiny-pebble --layers 0 --gen-tokens 256

Each round starts the one server, then the other, and requests from each one answer at a time and --clients at once:
prompts of --prompt-tokens random tokens, all different, and --gen-tokens drawn at random after them, streamed. A rate is
all tokens of the answers over the time from the first request to the last byte, so prompts are in it. Both servers get the
same requests and have a place for every client. Speeds are medians over rounds, ratios medians of the rounds' ratios.
Writes results/<date>-serving-<machine>.json and .md.
"""

import argparse
import datetime
import os
import random
import re
import selectors
import statistics
import sys
import time

import peer
from compare_llama import machine, warm
from serve_rate import END_TOKENS, TEXT_TOKENS, Server, open_stream

PATH = "/v1/completions"
# Tokens that end an answer are never drawn; what one server does not know it passes over.
SAMPLING = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "samplers": ["temperature"], "ignore_eos": True,
            "logit_bias": {str(token): -100 for token in END_TOKENS}}


def answer_all(address, draw, prompt_tokens, gen_tokens, clients):
    """Tokens per second of as many answers at once."""
    waiting = selectors.DefaultSelector()
    bodies = [{"prompt": [draw.randrange(TEXT_TOKENS) for _ in range(prompt_tokens)], "max_tokens": gen_tokens, "stream": True,
               "stream_options": {"include_usage": True}, "seed": draw.randrange(1 << 30), **SAMPLING} for _ in range(clients)]
    start = time.perf_counter()
    for body in bodies:
        connection, begun = open_stream(address, PATH, body)
        waiting.register(connection, selectors.EVENT_READ, bytearray(begun))
    while waiting.get_map():
        for key, _ in waiting.select():
            come = key.fileobj.recv(1 << 16)
            key.data.extend(come)
            if not come:
                waiting.unregister(key.fileobj)
                key.fileobj.close()
                counts = re.findall(rb'"completion_tokens":\s*(\d+)', key.data)
                if not counts or int(counts[-1]) != gen_tokens:
                    sys.exit(f"an answer ended with {counts[-1:]} tokens, expected {gen_tokens}: {bytes(key.data[-500:])}")
    return clients * gen_tokens / (time.perf_counter() - start)


def rates(options, address, number):
    """Rates of one client and of many: the best of --repeat each, in turns."""
    draw = random.Random(number)
    # A first answer, so that pages are mapped, buffers have their size and threads are awake.
    answer_all(address, draw, options.prompt_tokens, 4, 1)
    runs = [(answer_all(address, draw, options.prompt_tokens, options.gen_tokens, 1),
             answer_all(address, draw, options.prompt_tokens, options.gen_tokens, options.clients))
            for _ in range(options.repeat)]
    return {"one_tok_s": max(one for one, _ in runs), "many_tok_s": max(many for _, many in runs)}


def page(report):
    m, rounds = report["machine"], report["rounds"]
    def row(what, field):
        ours, theirs = ([r[side][field] for r in rounds] for side in ("millstream", "llama"))
        ratios = [a / b for a, b in zip(ours, theirs)]
        return (f"| {what} | {statistics.median(ours):.4g} | {statistics.median(theirs):.4g} | "
                f"**{statistics.median(ratios):.3g}** | {min(ratios):.3g} – {max(ratios):.3g} |")
    def gain(side):
        return statistics.median(r[side]["many_tok_s"] / r[side]["one_tok_s"] for r in rounds)
    layers = f"first {report['layers']} layers" if report["layers"] else "all layers"
    return "\n".join([
        f"# {report['like']}, {layers}, served, {report['date']}", "",
        f"{peer.facts(m)}; "
        f"{report['threads']} threads, {len(rounds)} rounds in turns, best of {report['repeat']} in each; "
        f"load before: {report['load_before']:.2f}.",
        f"millstream {report['millstream']} on MLX affine 4-bit g32; llama.cpp ({report['llama']}) on Q4_1: the same weights. "
        f"Prompts of {report['prompt_tokens']} tokens, answers of {report['gen_tokens']}.", "",
        "| tokens/s, median | millstream | llama.cpp | ratio | least – most |", "|---|---|---|---|---|",
        row("one client", "one_tok_s"), row(f"{report['clients']} clients", "many_tok_s"), "",
        f"{report['clients']} clients get {gain('millstream'):.2f} times the tokens of one from millstream, "
        f"{gain('llama'):.2f} times from llama.cpp.", "",
        f"Made by `{report['command']}`.", ""])


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    peer.model_options(a)
    a.add_argument("--prompt-tokens", type=int, default=32)
    a.add_argument("--gen-tokens", type=int, default=64)
    a.add_argument("--clients", type=int, default=16)
    a.add_argument("--threads", type=int, default=os.cpu_count())
    a.add_argument("--rounds", type=int, default=3)
    a.add_argument("--repeat", type=int, default=2, help="times each measures in a round, keeping its best")
    a.add_argument("--python", default=sys.executable, help="a Python with xllamacpp")
    peer.report_options(a)
    options = a.parse_args()
    mlx, gguf = peer.synthesize(options.millstream, options.like, options.layers, options.seed, options.models)
    load_before = peer.load()
    context = options.prompt_tokens + options.gen_tokens + 64
    rounds, build = [], None
    for number in range(options.rounds):
        # Each finds its own file in the page cache, also where both do not fit.
        warm(mlx)
        with Server(options.millstream, mlx, "--threads", options.threads, "--parallel", options.clients,
                    "--context", context) as server:
            ours = rates(options, server.address, number)
        warm(gguf)
        llama = peer.Llama(options.python, gguf, options.threads, context, options=("--parallel", options.clients))
        theirs = rates(options, llama.address, number)
        llama.close()
        build = llama.build
        rounds.append({"millstream": ours, "llama": theirs})
        print(f"round {number + 1}: " + ", ".join(
            f"{field.removesuffix('_tok_s')} {ours[field]:.4g} : {theirs[field]:.4g} = {ours[field] / theirs[field]:.2f}"
            for field in ours), file=sys.stderr, flush=True)
    date = datetime.date.today().isoformat()
    report = {
        "date": date, "machine": machine(), "like": options.like, "layers": options.layers, "threads": options.threads,
        "prompt_tokens": options.prompt_tokens, "gen_tokens": options.gen_tokens, "clients": options.clients,
        "repeat": options.repeat, "load_before": load_before,
        "millstream": peer.run([options.millstream, "--version"]).split()[-1], "llama": build,
        "command": peer.command_line("compare_serving.py"), "rounds": rounds,
    }
    peer.keep(options.results, f"{date}-serving-", options.machine, report, page(report))


if __name__ == "__main__":
    main()
