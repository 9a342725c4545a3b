#!/usr/bin/env python3
"""millstream against llama.cpp on a model larger than memory: same weights, threads and kernel limit, in turns.

    pip install xllamacpp gguf
    cargo build --release
    sudo benches/compare_streaming.py --python .venv/bin/python       # both routers, 40 % of 7 GB, 3 rounds
    sudo benches/compare_streaming.py --router uniform --share 0.2 --rounds 5
    sudo benches/compare_streaming.py --only llama_tuned --measure decode      # one side: shown, not written

Each round times the sides one after the other (A B C A B C …), each in a fresh control group (version
1 or 2; needs root) with the same limit, its model evicted from the page cache before, because pages
that another group has read are not counted:

millstream      `bench` with --memory 64 MiB below the limit
llama_tuned     llama.cpp with mapped weights, not repacked, on a loop device that reads the file directly with
                128 KiB of read-ahead: the most that mmap can do here, and the peer to compare with
llama_default   the same on the plain file with the disk's own read-ahead, and fewer tokens: it is slow

Measured are decoding of --gen-tokens after a prompt of --prompt-tokens; the same *cold*, by millstream alone with as
many slots as one layer of a token uses, so that no expert is ever found in memory; and apart from that the prefill of
--prefill-tokens, without llama_default unless --prefill-default is given. Prompts are the same tokens on
both sides; decoded tokens are random on both, so that routing does not settle on the experts of a
repeated token. llama.cpp answers a short prompt before its clock starts. Speeds are medians over rounds,
ratios medians of the rounds' ratios. Writes results/<date>-streaming-<machine>.json and .md.
"""

import argparse
import contextlib
import datetime
import json
import os
import pathlib
import re
import statistics
import sys

import disk
import peer
from compare_llama import machine
from under_limit import Group, Unavailable, end_cleanly_on_signals, shell_code

SIDES = ("millstream", "llama_tuned", "llama_default")
PEERS = {"llama_tuned": "llama.cpp, tuned", "llama_default": "llama.cpp, default"}
# What is measured, and the figure that counts.
MEASURES = {"decode": "decode_tok_s", "cold": "decode_tok_s", "prefill": "prefill_tok_s"}
# What a limit leaves to the program beyond its own budget.
ALLOWANCE_BYTES = 64 << 20
# What `millstream bench` says of a run that reads experts. Two tokens after a long prompt say nothing of decoding.
SAID_OF_DECODING = ("hit_rate", "read_bytes_per_token", "read_share", "bound_share", "ideal_share", "peak_bytes")
SAID = {"decode": SAID_OF_DECODING, "cold": SAID_OF_DECODING, "prefill": ("peak_bytes",)}
# Where the project wants to be; shown next to what was measured.
GOALS = {("decode", "llama_tuned"): 1.5, ("decode", "llama_default"): 8.0, ("prefill", "llama_tuned"): 3.0}
BOUND_GOAL = READ_GOAL = 0.9
PREFILL_GEN_TOKENS = 2
# What others may take of the processors before a figure is not worth keeping.
QUIET_SHARE = 0.05


class Model:
    """One model in both formats, and the limit it runs under."""

    def __init__(self, mlx, gguf, router, share):
        self.mlx, self.gguf, self.router = pathlib.Path(mlx), pathlib.Path(gguf), router
        self.bytes = sum(f.stat().st_size for f in disk.files_of(mlx) if f.suffix == ".safetensors")
        self.gguf_bytes = self.gguf.stat().st_size
        self.limit_bytes = int(self.bytes * share)
        self.vocab = peer.vocabulary(mlx)


def tokens_of(options, side, measure):
    """(tokens of the prompt, tokens to generate)."""
    if measure == "prefill":
        return options.prefill_tokens, PREFILL_GEN_TOKENS
    return options.prompt_tokens, options.default_gen_tokens if side == "llama_default" else options.gen_tokens


def cold_options(model, measure):
    """A slot for each expert that a token uses of one layer: what the next layer reads takes the place of all."""
    return ["--stream-experts", "always", "--expert-slots", peer.experts_per_token(model.mlx)] if measure == "cold" else []


def time_millstream(options, model, measure, group):
    prompt_tokens, gen_tokens = tokens_of(options, "millstream", measure)
    done = group.run([options.millstream, "bench", model.mlx, "--memory", model.limit_bytes - ALLOWANCE_BYTES,
                      "--prompt-tokens", prompt_tokens, "--gen-tokens", gen_tokens, "--threads", options.threads,
                      "--repeat", 1, "--json", *cold_options(model, measure), *options.bench_option],
                     capture_output=True, text=True)
    if done.returncode != 0:
        print(done.stderr[-2000:], file=sys.stderr)
        return {"exit_code": done.returncode}
    report = json.loads(done.stdout)
    (run,) = report["runs"]
    missing = [key for key in SAID[measure] if not isinstance(run.get(key), (int, float))]
    if missing:
        sys.exit(f"error: `millstream bench --json` says nothing of {', '.join(missing)}: is this a build that "
                 "streams, and did it stream?")
    return {"exit_code": 0, "isa": report["isa"]} | run


def time_llama(options, model, measure, group, side, path):
    prompt_tokens, gen_tokens = tokens_of(options, side, measure)
    tokens = peer.bench_tokens(prompt_tokens + 64, model.vocab)
    try:
        llama = peer.Llama(options.python, path, options.threads, prompt_tokens + gen_tokens + 64,
                           ["--lean", "--batch", options.batch], group)
        # A first answer to other tokens, so that pages are mapped, buffers have their size and threads are awake.
        llama.ask(op="time", prompt=tokens[prompt_tokens:], gen_tokens=2)
        run = llama.ask(op="time", prompt=tokens[:prompt_tokens], gen_tokens=gen_tokens)
        return {"exit_code": shell_code(llama.close()), "build": llama.build} | run
    except peer.Ended as ended:
        print(ended, file=sys.stderr)
        return {"exit_code": shell_code(ended.exit_code)}


class Neighbours:
    """How much of the processors other processes take meanwhile, and the kernel for no process."""

    def __init__(self):
        self.before = self._now()

    def share(self):
        busy, ours, all_of = (now - before for now, before in zip(self._now(), self.before))
        return max(0.0, busy - ours) / all_of if all_of else 0.0

    @staticmethod
    def _now():
        # user nice system idle iowait irq softirq steal: stolen time is a neighbour's too.
        ticks = [int(field) for field in pathlib.Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
        ours = sum(os.times()[:4]) * os.sysconf("SC_CLK_TCK")
        return sum(ticks) - ticks[3] - ticks[4], ours, sum(ticks)


def time_side(options, model, measure, side):
    """One run of one side, with what the kernel counted under `group`."""
    neighbours = Neighbours()
    with contextlib.ExitStack() as stack:
        path = model.gguf
        if side == "llama_tuned":
            path = stack.enter_context(disk.LoopDevice(path, options.read_ahead_kb)).path
        disk.evict(model.mlx, model.gguf)
        group = stack.enter_context(Group(model.limit_bytes))
        if side == "millstream":
            run = time_millstream(options, model, measure, group)
        else:
            run = time_llama(options, model, measure, group, side, path)
        return run | {"neighbours_share": neighbours.share(), "group": group.figures()}


def sides_of(options, measure):
    """Which programs are timed: cold decoding is compared with the bound alone, and the slowest peer's prefill takes long."""
    left_out = {"decode": (), "cold": tuple(PEERS), "prefill": () if options.prefill_default else ("llama_default",)}
    return [side for side in options.only or SIDES if side not in left_out[measure]]


def time_round(options, model, measure):
    sides = sides_of(options, measure)
    result = {}
    for side in sides:
        run = result[side] = time_side(options, model, measure, side)
        speed = run.get(MEASURES[measure])
        said = "failed" if speed is None else f"{speed:.2f} tokens/s"
        counted = run["group"]
        print(f"  {measure} {side}: {said}, exit {run['exit_code']}, peak {counted['peak_bytes'] / 1e9:.2f} of "
              f"{counted['limit_bytes'] / 1e9:.2f} GB (anonymous {counted['anonymous_peak_bytes'] / 1e9:.2f}), limit met "
              f"{counted['limit_hits']} times, {counted['oom_kills']} killed, swap {counted['swap_peak_bytes']}"
              + (f", read {run['read_bytes'] / 1e9:.2f} GB" if run.get("read_bytes") is not None else ""), file=sys.stderr, flush=True)
        if run["neighbours_share"] > QUIET_SHARE:
            print(f"  warning: others took {100 * run['neighbours_share']:.0f} % of the processors meanwhile", file=sys.stderr)
    return result


def spread(values):
    return {"median": statistics.median(values), "least": min(values), "most": max(values)} if values else None


def summary(rounds, measure):
    """Medians and spreads over the rounds that gave a figure."""
    metric = MEASURES[measure]
    def of(side, key):
        return [r[side][key] for r in rounds if r.get(side, {}).get(key) is not None]
    def counted(side, key):
        return [r[side]["group"][key] for r in rounds if side in r]
    sides = [side for side in SIDES if any(side in r for r in rounds)]
    result = {
        "tok_s": {side: spread(of(side, metric)) for side in sides},
        "neighbours_share": {side: max(of(side, "neighbours_share")) for side in sides},
        "failures": {side: sum(code != 0 for code in of(side, "exit_code")) for side in sides},
        "group": {side: {key: max(counted(side, key)) for key in
                         ("peak_bytes", "anonymous_peak_bytes", "limit_hits", "oom_kills", "swap_peak_bytes")}
                  for side in sides},
    }
    if "millstream" in sides:
        result["ratio"] = {side: spread([r["millstream"][metric] / r[side][metric] for r in rounds
                                         if metric in r.get("millstream", {}) and metric in r.get(side, {})])
                           for side in sides if side != "millstream"}
        result["said"] = {key: spread(of("millstream", key)) for key in SAID[measure]}
    return result


def row(report, measure, side, result):
    speeds, ratio = result["tok_s"], result.get("ratio", {}).get(side)
    prompt_tokens, gen_tokens = report["tokens"][measure][side]
    what = f"prefill {prompt_tokens}" if measure == "prefill" else f"decode {gen_tokens} after {prompt_tokens}"
    if measure == "cold":
        what += ", no expert kept"
    def speed(of):
        return f"{speeds[of]['median']:.2f}" if speeds.get(of) else "–"
    goal = GOALS.get((measure, side))
    peers = f", {PEERS[side]}" if side in PEERS else ""
    return (f"| {what}{peers} | {speed('millstream')} | {speed(side) if peers else '–'} | "
            + (f"**{ratio['median']:.2f}** | {ratio['least']:.2f} – {ratio['most']:.2f}" if ratio else "– | –")
            + f" | {goal or '–'} |")


def notes(memory_bytes, result):
    """What millstream says of its run, and what the kernel said of all."""
    lines = []
    said = result.get("said", {})
    if said.get("bound_share"):
        m = {key: value["median"] for key, value in said.items()}
        lines.append(f"millstream: hit rate {100 * m['hit_rate']:.0f} %, {m['read_bytes_per_token'] / 1e6:.0f} MB read per token, "
                     f"read share {m['read_share']:.2f} (goal {READ_GOAL}), bound share {m['bound_share']:.2f} "
                     f"({said['bound_share']['least']:.2f} – {said['bound_share']['most']:.2f}, goal {BOUND_GOAL}), "
                     f"ideal share {m['ideal_share']:.2f}.")
    if said.get("peak_bytes"):
        lines.append(f"millstream: peak_bytes {said['peak_bytes']['most'] / 1e9:.3f} GB of {memory_bytes / 1e9:.3f}.")
    for side, counted in result["group"].items():
        lines.append(f"{PEERS.get(side, side)}: {counted['peak_bytes'] / 1e9:.2f} GB counted by the kernel "
                     f"({counted['anonymous_peak_bytes'] / 1e9:.2f} anonymous), limit met {counted['limit_hits']} times, "
                     f"swap {counted['swap_peak_bytes']}, {result['failures'][side]} failed runs, others on the processors at most "
                     f"{100 * result['neighbours_share'][side]:.0f} %.")
    return lines


def page(report):
    m = report["machine"]
    lines = [
        f"# Larger than memory: {report['shape']}, {report['date']}", "",
        f"{peer.facts(m)}; disk with "
        f"{report['read_ahead_kb']['llama_default']} KiB of read-ahead; {report['threads']} threads, {report['round_count']} "
        f"rounds in turns, load before: {report['load_before']:.2f}.",
        f"millstream {report['millstream']} ({report['isa']}) on MLX affine 4-bit g32; llama.cpp ({report['llama']}) on "
        f"{report['gguf']}, mapped and not repacked: *tuned* on a loop device with direct I/O and "
        f"{report['read_ahead_kb']['llama_tuned']} KiB of read-ahead, *default* on the plain file.", ""]
    for router, model in report["models"].items():
        lines += [f"## Router: {router}", "",
                  f"{model['bytes'] / 1e9:.2f} GB of weights, limit {model['limit_bytes'] / 1e9:.2f} GB (cgroup version "
                  f"{model['cgroup']}), page cache emptied before each run.", "",
                  "| tokens/s, median | millstream | llama.cpp | ratio | least – most | goal |", "|---|---|---|---|---|---|"]
        for measure, result in model["summary"].items():
            sides = [side for side in result["tok_s"] if side != "millstream"] or list(result["tok_s"])
            lines += [row(report, measure, side, result) for side in sides]
        lines.append("")
        for measure, result in model["summary"].items():
            lines += [f"- {measure}, {line}" for line in notes(model["memory_bytes"], result)]
        lines.append("")
    return "\n".join([*lines, f"Made by `{report['command']}`.", ""])


def measure_model(options, model):
    """All rounds on one model, as the report keeps them."""
    rounds = {measure: [] for measure in options.measure}
    for number in range(options.rounds):
        print(f"{model.router}, round {number + 1}", file=sys.stderr, flush=True)
        for measure in options.measure:
            rounds[measure].append(time_round(options, model, measure))
    some = next(iter(rounds[options.measure[0]][0].values()))
    return {"bytes": model.bytes, "gguf_bytes": model.gguf_bytes, "limit_bytes": model.limit_bytes,
            "memory_bytes": model.limit_bytes - ALLOWANCE_BYTES, "cgroup": some["group"]["cgroup"],
            "summary": {measure: summary(done, measure) for measure, done in rounds.items()}, "rounds": rounds}


def arguments():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    peer.model_options(a)
    a.add_argument("--router", nargs="+", default=["uniform", "tuned"], choices=["uniform", "tuned"])
    a.add_argument("--mlx", type=pathlib.Path, help="an MLX folder that exists, instead of synth")
    a.add_argument("--gguf", type=pathlib.Path, help="the same model as a GGUF")
    a.add_argument("--share", type=float, default=0.4, help="limit as a share of the model's bytes [%(default)s]")
    a.add_argument("--prompt-tokens", type=int, default=128, help="prompt before decoding [%(default)s]")
    a.add_argument("--gen-tokens", type=int, default=64, help="[%(default)s]")
    a.add_argument("--default-gen-tokens", type=int, default=8, help="the same for llama_default [%(default)s]")
    a.add_argument("--prefill-tokens", type=int, default=2048, help="[%(default)s]")
    a.add_argument("--prefill-default", action="store_true", help="time the prefill of llama_default too")
    a.add_argument("--measure", nargs="+", default=list(MEASURES), choices=MEASURES)
    a.add_argument("--only", nargs="+", choices=SIDES, help="these sides; writes no results")
    a.add_argument("--threads", type=int, default=os.cpu_count())
    a.add_argument("--rounds", type=int, default=3)
    a.add_argument("--batch", type=int, default=512, help="llama.cpp's n_ubatch [%(default)s, its own default]")
    a.add_argument("--read-ahead-kb", type=int, default=128, help="of llama_tuned's device [%(default)s]")
    a.add_argument("--bench-option", action="append", default=[], help="passed on to `millstream bench`")
    a.add_argument("--python", default=sys.executable, help="a Python with xllamacpp")
    peer.report_options(a)
    options = a.parse_args()
    if bool(options.mlx) != bool(options.gguf):
        a.error("--mlx and --gguf go together")
    idle = [measure for measure in options.measure if not sides_of(options, measure)]
    if idle:
        a.error(f"none of --only {' '.join(options.only)} is timed for {' or '.join(idle)}")
    if os.geteuid() != 0:
        a.error("memory limits and loop devices need root")
    return options


def shape_of(options):
    if options.mlx:
        return options.mlx.name
    return f"{options.like}, " + (f"first {options.layers} layers" if options.layers else "all layers")


def models_of(options):
    if options.mlx:
        return [Model(options.mlx, options.gguf, "as given", options.share)]
    return [Model(*peer.synthesize(options.millstream, options.like, options.layers, options.seed, options.models, router),
                  router, options.share) for router in options.router]


def main():
    options = arguments()
    end_cleanly_on_signals()
    models = models_of(options)
    load_before = peer.load()
    date = datetime.date.today().isoformat()
    try:
        measured = {model.router: measure_model(options, model) for model in models}
    except Unavailable as error:
        sys.exit(f"error: {error}")
    runs = [r for model in measured.values() for rounds in model["rounds"].values() for r in rounds]
    def said(side, key):
        return next((r[side][key] for r in runs if key in r.get(side, {})), "not run")
    report = {
        "date": date, "machine": machine(), "shape": shape_of(options), "threads": options.threads,
        "share": options.share, "round_count": options.rounds, "load_before": load_before,
        "read_ahead_kb": {"llama_tuned": options.read_ahead_kb, "llama_default": disk.read_ahead_kb(models[0].gguf)},
        "tokens": {measure: {side: tokens_of(options, side, measure) for side in SIDES} for measure in options.measure},
        "batch": options.batch,
        "millstream": peer.run([options.millstream, "--version"]).split()[-1], "isa": said("millstream", "isa"),
        "llama": said("llama_tuned", "build"),
        # What a file given by hand holds is not ours to say.
        "gguf": options.gguf.name if options.gguf else "Q4_1: the same weights",
        "command": peer.command_line("compare_streaming.py"), "models": measured,
    }
    if not options.only:
        options.results.mkdir(parents=True, exist_ok=True)
        name = re.sub("[^A-Za-z0-9.-]+", "-", options.machine) or "machine"
        stem = options.results / f"{date}-streaming-{name}"
        stem.with_name(stem.name + ".json").write_text(json.dumps(report, indent=2) + "\n")
        stem.with_name(stem.name + ".md").write_text(page(report))
    print(page(report))
    sys.exit(any(run["exit_code"] != 0 for r in runs for run in r.values()))


if __name__ == "__main__":
    main()
