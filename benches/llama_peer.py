"""llama.cpp as a peer, from the PyPI package `xllamacpp` (a prebuilt llama.cpp with its server).

Used by check_same_model.py and the compare_*.py scripts in a process of its own, so that
its memory and threads are gone when ours run. Reads one JSON request per line from stdin, answers one per line:
  {"op": "time", "prompt": [ids], "gen_tokens": 64}  -> prefill and decode tokens/s, bytes read
  {"op": "next", "prompt": [ids], "top": 20}         -> the likeliest next tokens: [[id, logprob], …]
usage: llama_peer.py MODEL.gguf --threads 2 --context 1024 [--lean] [--batch 512] [--parallel 1]

Its HTTP server listens too; the first line says where.

--lean is for a memory limit smaller than the model. Weights are mapped and left as they are: copies in
a layout of llama.cpp's own are anonymous memory, and it would be killed. Nothing is kept of a prompt
(states to go back to, whole old prompts), which takes memory and time and which no request here uses.
"""

import argparse
import json
import os
import sys

import xllamacpp as xl


def server(options):
    p = xl.CommonParams()
    p.model.path = options.model
    p.n_ctx = options.context * options.parallel
    p.n_parallel = options.parallel
    p.port = 0
    p.warmup = False
    p.n_batch = p.n_ubatch = options.batch
    if options.lean:
        p.load_mode = xl.llama_load_mode.LLAMA_LOAD_MODE_MMAP
        p.no_extra_bufts = True
        p.n_ctx_checkpoints = p.cache_ram_mib = 0
    p.cpuparams.n_threads = p.cpuparams_batch.n_threads = options.threads
    p.verbosity = -1
    return xl.Server(p)


def complete(peer, request):
    answer = peer.handle_completions(request | {"stream": False, "seed": 1})
    answer = json.loads(answer) if isinstance(answer, (str, bytes)) else answer
    if "choices" not in answer:
        raise SystemExit(f"llama.cpp answered {str(answer)[:500]}")
    return answer


def bytes_read():
    """What this process had read from disks so far, through page faults too; None where the system does not count."""
    try:
        with open("/proc/self/io", encoding="ascii") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("read_bytes:"))
    except OSError:
        return None


def timed(peer, request):
    # Random sampling, so that routing does not settle on the experts of a repeated token.
    sampling = {"temperature": 100.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "samplers": ["temperature"]}
    before = bytes_read()
    answer = complete(peer, {
        "prompt": request["prompt"], "n_predict": request["gen_tokens"],
        "ignore_eos": True, "cache_prompt": False, **sampling,
    })
    t = answer["timings"]
    assert t["prompt_n"] == len(request["prompt"]), t
    return {"prefill_tok_s": t["prompt_per_second"], "decode_tok_s": t["predicted_per_second"],
            "gen_tokens": t["predicted_n"], "read_bytes": None if before is None else bytes_read() - before}


def next_tokens(peer, request):
    answer = complete(peer, {
        "prompt": request["prompt"], "n_predict": 1, "temperature": 0.0, "n_probs": request["top"],
        "samplers": ["temperature"], "ignore_eos": False, "cache_prompt": True,
    })
    # A token that is half a character has no text yet, and the server then lists nothing.
    content = (answer["choices"][0].get("logprobs") or {}).get("content") or []
    return [[t["id"], t["logprob"]] for t in content[0]["top_logprobs"]] if content else []


def main():
    a = argparse.ArgumentParser()
    a.add_argument("model")
    a.add_argument("--threads", type=int, default=2)
    a.add_argument("--context", type=int, default=1024)
    a.add_argument("--batch", type=int, default=512, help="tokens of a prompt that go through a layer together")
    a.add_argument("--parallel", type=int, default=1, help="answers at once, each with the whole context")
    a.add_argument("--lean", action="store_true", help="no copies of weights, nothing kept of a prompt")
    options = a.parse_args()
    # Answers go to the real stdout; whatever llama.cpp prints goes to stderr.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    peer = server(options)
    print(json.dumps({"address": peer.listening_address, "xllamacpp": xl.__version__}), file=answers, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        answer = timed(peer, request) if request["op"] == "time" else next_tokens(peer, request)
        print(json.dumps(answer), file=answers, flush=True)
    # The server's threads do not always end by themselves.
    os._exit(0)


if __name__ == "__main__":
    main()
