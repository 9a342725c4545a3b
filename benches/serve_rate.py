#!/usr/bin/env python3
"""What the server costs: one client against `millstream bench`, a second turn.

    cargo build --release
    benches/serve_rate.py                        # 12 layers of Qwen3.5-35B-A3B, 7 GB; and Pebble
    benches/serve_rate.py --only turns           # Pebble only

one     decode rate of one streaming HTTP client against `millstream bench` on a synthetic model, in turns
        (A B A B …), each in a process of its own. The client's clock runs from the first token to the last
        byte. Tokens are drawn at random on both sides, so that routing does not settle.
turns   time to the first token of a chat of about --turn-tokens tokens, and of its second turn, on Pebble.

Speeds are medians over rounds, ratios medians of the rounds' ratios. Writes
results/<date>-serve-<machine>.json and .md.
"""

import argparse
import datetime
import http.client
import json
import os
import statistics
import subprocess
import sys
import time

import peer
from compare_llama import machine, warm

PARTS = ("one", "turns")
# Where the project wants to be.
GOALS = {"one": 0.97}
# Pebble's tokenizer, which synthetic models share: everything below is text.
TEXT_TOKENS = 4078
END_TOKENS = (4080, 4082)


class Server:
    """`millstream serve` until the end of the `with`."""

    def __init__(self, millstream, model, *options):
        command = [millstream, "serve", model, "--port", 0, *options]
        self.process = subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE,
                                        stderr=subprocess.DEVNULL, text=True)
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"{' '.join(map(str, command))} ended with {self.process.wait()}")
        self.address = json.loads(line)["url"].removeprefix("http://")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()

    def ask(self, path, body):
        connection = http.client.HTTPConnection(self.address)
        headers = {"content-type": "application/json", "x-prefill-progress": "1"}
        connection.request("POST", path, json.dumps(body), headers)
        answer = connection.getresponse()
        if answer.status != 200:
            sys.exit(f"{path}: {answer.status} {answer.read().decode()}")
        return answer

    def metric(self, name):
        connection = http.client.HTTPConnection(self.address)
        connection.request("GET", "/metrics")
        for line in connection.getresponse().read().decode().splitlines():
            if line.startswith(f"millstream_{name} "):
                return float(line.split()[1])
        sys.exit(f"/metrics has no {name}")


def events(answer):
    """(event, data, time) of server-sent events."""
    name = None
    for line in answer:
        if line.startswith(b"event: "):
            name = line[7:].strip().decode()
        elif line.startswith(b"data: "):
            yield name, line[6:].strip(), time.perf_counter()
            name = None


def client_rate(server, prompt, tokens):
    """Tokens per second from the first token to the end of the stream."""
    # Only tokens that are text, or a client would see nothing of what it waits for.
    bias = {str(token): 100 for token in range(TEXT_TOKENS)} | {str(token): -100 for token in END_TOKENS}
    answer = server.ask("/v1/completions", {"prompt": prompt, "max_tokens": tokens, "temperature": 1, "seed": 1,
                                            "logit_bias": bias, "stream": True, "stream_options": {"include_usage": True}})
    begin, end, pieces, usage = None, None, 0, None
    for name, data, now in events(answer):
        if data == b"[DONE]":
            break
        if name != "prefill_progress":
            chunk = json.loads(data)
            usage = chunk.get("usage") or usage
            pieces += any(choice["text"] for choice in chunk["choices"])
            begin, end = begin or now, now
    if usage["completion_tokens"] != tokens or pieces < tokens // 2:
        sys.exit(f"{usage['completion_tokens']} tokens in {pieces} pieces came, expected {tokens}")
    return (tokens - 1) / (end - begin)


def measure_one(options):
    mlx, _ = peer.synthesize(options.millstream, options.like, options.layers, options.seed, options.models, formats=("mlx",))
    warm(mlx)
    prompt = [token % TEXT_TOKENS for token in peer.bench_tokens(options.prompt_tokens, peer.vocabulary(mlx))]
    rounds = []
    for number in range(options.rounds):
        report = json.loads(peer.run([options.millstream, "bench", mlx, "--threads", options.threads, "--json", "--repeat",
                                      options.repeat, "--prompt-tokens", options.prompt_tokens, "--gen-tokens", options.gen_tokens]))
        bench = report["runs"][0]["decode_tok_s"]
        with Server(options.millstream, mlx, "--threads", options.threads, "--parallel", 4,
                    "--context", options.prompt_tokens + options.gen_tokens + 64) as server:
            client_rate(server, prompt[:64], 8)
            client = max(client_rate(server, prompt, options.gen_tokens) for _ in range(options.repeat))
        rounds.append({"bench_tok_s": bench, "client_tok_s": client, "ratio": client / bench})
        print(f"one, round {number + 1}: {client:.2f} : {bench:.2f} = {client / bench:.3f}", file=sys.stderr, flush=True)
    return rounds


def first_token_seconds(server, messages):
    """Time to the first piece of text, the whole text, and what it took."""
    start = time.perf_counter()
    answer = server.ask("/v1/chat/completions", {"messages": messages, "stream": True, "max_tokens": 48, "temperature": 0,
                                                 "stream_options": {"include_usage": True}})
    first, text, usage = None, "", None
    for name, data, now in events(answer):
        if name is None and data != b"[DONE]":
            chunk = json.loads(data)
            usage = chunk.get("usage") or usage
            piece = "".join(choice["delta"].get("content") or "" for choice in chunk["choices"])
            first = first or (now if piece else None)
            text += piece
    return first - start, text, usage


def measure_turns(options):
    rounds = []
    with Server(options.millstream, "pebble", "--threads", options.threads) as server:
        first_token_seconds(server, [{"role": "user", "content": "Hello."}])
        for number in range(options.rounds):
            # Another text each time, or the first turn would be remembered too.
            words = " ".join(f"Line {line}: the fox {number} looked at the lantern." for line in range(options.turn_tokens // 14))
            messages = [{"role": "user", "content": words + "\n\nTell me a story about a fox."}]
            first, text, usage = first_token_seconds(server, messages)
            messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "What's the opposite of cold?"}]
            second, _, again = first_token_seconds(server, messages)
            rounds.append({"first_s": first, "second_s": second, "ratio": first / second, "prompt_tokens": usage["prompt_tokens"],
                           "cached_tokens": again["prompt_tokens_details"]["cached_tokens"]})
            print(f"turns, round {number + 1}: {1000 * first:.0f} ms, then {1000 * second:.0f} ms", file=sys.stderr, flush=True)
    return rounds


def median(rounds, field):
    return statistics.median(row[field] for row in rounds)


def page(report):
    m = report["machine"]
    rows = []
    for part, what, first, second, unit in (
            ("one", f"one HTTP client : `bench`, {report['layers']} layers of {report['like']}", "client_tok_s", "bench_tok_s", "tokens/s"),
            ("turns", "first turn : second turn, Pebble, to the first token", "first_s", "second_s", "s")):
        rounds = report["rounds"].get(part)
        if rounds:
            ratios = [row["ratio"] for row in rounds]
            goal = f"≥ {GOALS[part]}" if part in GOALS else ""
            rows.append(f"| {what} | {median(rounds, first):.4g} {unit} | {median(rounds, second):.4g} {unit} | "
                        f"**{statistics.median(ratios):.3g}** | {min(ratios):.3g} – {max(ratios):.3g} | {goal} |")
    turns = report["rounds"].get("turns")
    remembered = [f"Turns: a prompt of {median(turns, 'prompt_tokens'):.0f} tokens, of which the second turn remembered "
                  f"{median(turns, 'cached_tokens'):.0f}.", ""] if turns else []
    return "\n".join([
        f"# The server, {report['date']}", "",
        f"{peer.facts(m)}; "
        f"{report['threads']} threads, {report['repeat']} of a kind in a round; load before: {report['load_before']:.2f}. "
        f"millstream {report['millstream']}.", "",
        "| medians over rounds | first | second | ratio | least – most | goal |", "|---|---|---|---|---|---|", *rows, "",
        *remembered, f"Made by `{report['command']}`.", ""])


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--only", default=",".join(PARTS), help="parts, separated by commas [%(default)s]")
    peer.model_options(a)
    a.add_argument("--prompt-tokens", type=int, default=128)
    a.add_argument("--gen-tokens", type=int, default=64)
    a.add_argument("--turn-tokens", type=int, default=2000)
    a.add_argument("--threads", type=int, default=os.cpu_count())
    a.add_argument("--rounds", type=int, default=5)
    a.add_argument("--repeat", type=int, default=3, help="times each measures in a round, keeping its best")
    peer.report_options(a)
    options = a.parse_args()
    parts = options.only.split(",")
    if not set(parts) <= set(PARTS):
        a.error(f"--only takes {', '.join(PARTS)}")
    load_before = peer.load()
    measure = {"one": measure_one, "turns": measure_turns}
    rounds = {part: measure[part](options) for part in PARTS if part in parts}
    date = datetime.date.today().isoformat()
    report = {
        "date": date, "machine": machine(), "like": options.like, "layers": options.layers, "threads": options.threads,
        "prompt_tokens": options.prompt_tokens, "gen_tokens": options.gen_tokens,
        "repeat": options.repeat, "load_before": load_before,
        "millstream": peer.run([options.millstream, "--version"]).split()[-1],
        "command": peer.command_line("serve_rate.py"), "rounds": rounds,
    }
    peer.keep(options.results, f"{date}-serve-", options.machine, report, page(report))


if __name__ == "__main__":
    main()
