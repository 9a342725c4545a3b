#!/usr/bin/env python3
"""What the server costs, and what it gains: one client beside `millstream bench`, sixteen beside one, a second turn.

    cargo build --release
    benches/serve_rate.py                        # 12 layers of Qwen3.5-35B-A3B, 7 GB; and Pebble
    benches/serve_rate.py --only many,turns      # Pebble only

one     decode rate of one streaming HTTP client against `millstream bench` on a synthetic model, in turns
        (A B A B …), each in a process of its own. The client's clock runs from the first token to the last
        byte. Tokens are drawn at random on both sides, so that routing does not settle.
many    tokens/s of the engine with --clients streaming clients and with one, on Pebble, in turns, from
        the counters of /metrics. Before each, how fast the cores are now: neighbours on a shared machine slow them unseen.
turns   time to the first token of a chat of about --turn-tokens tokens, and of its second turn, on Pebble.

Speeds are medians over rounds, ratios medians of the rounds' ratios. Writes
results/<date>-serve-<machine>.json and .md.
"""

import argparse
import datetime
import http.client
import json
import os
import selectors
import socket
import statistics
import subprocess
import sys
import time

import peer
from compare_llama import machine, warm

PARTS = ("one", "many", "turns")
# Where the project wants to be.
GOALS = {"one": 0.97, "many": 3.0}
# Pebble's tokenizer, which synthetic models share: everything below is text.
TEXT_TOKENS = 4078
END_TOKENS = (4080, 4082)
# What clients are woken for.
READ_BYTES = 8 << 10
# Turns of a loop that does nothing.
LOOPS = 1_000_000


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


def open_stream(address, path, body):
    """A connection on which an answer comes until it is closed, and what has come of it. It is woken for a few kilobytes or
    the end: elsewhere clients have machines of their own."""
    host, port = address.rsplit(":", 1)
    data = json.dumps(body).encode()
    connection = socket.create_connection((host, int(port)))
    head = (f"POST {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n"
            f"content-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n")
    connection.sendall(head.encode() + data)
    begun = connection.recv(1 << 12)
    status = begun.split(b"\r\n")[0]
    if status != b"HTTP/1.1 200 OK":
        sys.exit(f"a client was told {status.decode()}")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, READ_BYTES)
    return connection, begun


def engine_rate(server, clients, seconds):
    """Tokens per second that the engine generated while so many clients ask without a pause.

    They share one thread that throws away what has come: what they take of the processor is taken from the engine."""
    body = {"messages": [{"role": "user", "content": "Tell me a story about a fox and a lantern."}], "stream": True,
            "max_tokens": 256, "temperature": 1, "logit_bias": {str(token): -100 for token in END_TOKENS}}
    waiting = selectors.DefaultSelector()
    asked = [0] * clients

    def ask(number):
        connection, _ = open_stream(server.address, "/v1/chat/completions", body | {"seed": 1000 * number + asked[number]})
        asked[number] += 1
        waiting.register(connection, selectors.EVENT_READ, number)

    for number in range(clients):
        ask(number)
    start = time.perf_counter()
    # Not the beginning, when prompts are read, nor the end, when clients leave.
    looks, counts = [seconds / 5, seconds * 4 / 5], []
    while waiting.get_map():
        since = time.perf_counter() - start
        if looks and since >= looks[0]:
            looks.pop(0)
            counts.append((server.metric("generated_tokens_total"), time.perf_counter()))
        for key, _ in waiting.select(0.1):
            if not key.fileobj.recv(1 << 16):
                waiting.unregister(key.fileobj)
                key.fileobj.close()
                if since < seconds:
                    ask(key.data)
    (tokens, begin), (more, end) = counts
    return (more - tokens) / (end - begin)


def core_speeds():
    """Turns of a plain loop in a second, on one core after another. Where half of a core is lent to somebody else, a loop has
    half of its speed while they use it, and no load is seen here."""
    if not hasattr(os, "sched_setaffinity"):
        return []
    ours, speeds = os.sched_getaffinity(0), []
    for core in sorted(ours):
        os.sched_setaffinity(0, {core})
        begin = time.perf_counter()
        for _ in range(LOOPS):
            pass
        speeds.append(LOOPS / (time.perf_counter() - begin))
    os.sched_setaffinity(0, ours)
    return speeds


def measure_many(options):
    rounds = []
    with Server(options.millstream, "pebble", "--threads", options.threads, "--parallel", options.clients) as server:
        engine_rate(server, options.clients, 2)
        for number in range(options.rounds):
            speeds = core_speeds()
            one = engine_rate(server, 1, options.seconds)
            speeds += core_speeds()
            many = engine_rate(server, options.clients, options.seconds)
            rounds.append({"one_tok_s": one, "many_tok_s": many, "ratio": many / one, "core_speeds": speeds})
            print(f"many, round {number + 1}: {many:.0f} : {one:.0f} = {many / one:.2f}", file=sys.stderr, flush=True)
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
            ("many", f"{report['clients']} clients : one, Pebble", "many_tok_s", "one_tok_s", "tokens/s"),
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
    speeds = [speed for row in report["rounds"].get("many", []) for speed in row["core_speeds"]]
    disturbed = [f"A plain loop on a core, before each measurement of clients: {100 * min(speeds) / max(speeds):.0f} to 100 % of its "
                 f"best speed, {100 * statistics.median(speeds) / max(speeds):.0f} in the median.", ""] if speeds else []
    return "\n".join([
        f"# The server, {report['date']}", "",
        f"{peer.facts(m)}; "
        f"{report['threads']} threads, {report['repeat']} of a kind in a round; load before: {report['load_before']:.2f}. "
        f"millstream {report['millstream']}.", "",
        "| medians over rounds | first | second | ratio | least – most | goal |", "|---|---|---|---|---|---|", *rows, "",
        *remembered, *disturbed, f"Made by `{report['command']}`.", ""])


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--only", default=",".join(PARTS), help="parts, separated by commas [%(default)s]")
    peer.model_options(a)
    a.add_argument("--prompt-tokens", type=int, default=128)
    a.add_argument("--gen-tokens", type=int, default=64)
    a.add_argument("--clients", type=int, default=16)
    a.add_argument("--seconds", type=float, default=10, help="how long a rate of many clients is measured")
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
    measure = {"one": measure_one, "many": measure_many, "turns": measure_turns}
    rounds = {part: measure[part](options) for part in PARTS if part in parts}
    date = datetime.date.today().isoformat()
    report = {
        "date": date, "machine": machine(), "like": options.like, "layers": options.layers, "threads": options.threads,
        "prompt_tokens": options.prompt_tokens, "gen_tokens": options.gen_tokens, "clients": options.clients,
        "repeat": options.repeat, "load_before": load_before,
        "millstream": peer.run([options.millstream, "--version"]).split()[-1],
        "command": peer.command_line("serve_rate.py"), "rounds": rounds,
    }
    peer.keep(options.results, f"{date}-serve-", options.machine, report, page(report))


if __name__ == "__main__":
    main()
