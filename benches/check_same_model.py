#!/usr/bin/env python3
"""Shows that the two files `millstream synth` makes are one model: llama.cpp on the GGUF and
millstream on the MLX folder agree on the next token, position by position.

    pip install xllamacpp gguf numpy
    cargo build --release
    benches/check_same_model.py                                   # all tiny shapes
    benches/check_same_model.py --like qwen3.5-35b-a3b --layers 4

millstream answers a random prompt greedily; llama.cpp is queried at each of these positions for its
own choice and its log-probabilities of the 20 likeliest tokens. Two comparisons:

exact    llama.cpp on the GGUF with its Q4_1 weights written out as F32, so that it rounds no
         activation. Passes when every choice is the same and no log-probability is off by more
         than 0.005 of the logits' deviation. For small files only: F32 is 6.4 times as large.
as is    llama.cpp on the GGUF itself. It rounds activations to 8 bits before it multiplies, and
         millstream does not. Where there is no exact comparison it must pass: differences below
         0.05 deviations in the median position and 0.2 in the worst, and every choice the same
         except where millstream's own best two are closer than twice the largest difference.
         For small models it is only shown: a few experts of a few rows make much of rounding.

A wrong order of heads, rows or nibbles anywhere gives differences of several deviations; --wrong
shows that, by giving llama.cpp a model of another seed.
"""

import argparse
import pathlib
import random
import sys
import tempfile

import gguf
import numpy as np

import peer

TINY = ["tiny-qwen3.5-moe", "tiny-qwen3.5", "tiny-qwen3.5-tied", "tiny-qwen3-moe", "tiny-qwen3", "tiny-llama"]
TOP = 20
EXACT_LIMIT_BYTES = 200e6
EXACT_TOLERANCE = 0.005
MEDIAN_TOLERANCE, WORST_TOLERANCE = 0.05, 0.2


def ours(options, mlx, prompt):
    """(greedy tokens, logits at the positions that chose them [greedy, vocab])."""
    with tempfile.NamedTemporaryFile(suffix=".safetensors") as file:
        def logits(tokens, *more):
            command = [options.millstream, "logits", mlx, "--threads", options.threads, "--kv", "f32",
                       "--tokens", " ".join(map(str, tokens)), "--out", file.name, *more]
            peer.run(command)
            return peer.read_safetensors(file.name)

        tokens = np.frombuffer(logits(prompt, "--greedy", options.greedy)["tokens"][2], dtype="<i8").tolist()
        # Once more in one go, so that the logits of the generated positions come too.
        _, shape, data = logits(prompt + tokens[:-1])["logits"]
    values = np.frombuffer(data, dtype="<f4").reshape(shape)[len(prompt) - 1:].astype(np.float64)
    assert np.argmax(values, axis=1).tolist() == tokens, "decoding and prefill disagree"
    return tokens, values


def as_f32(path, out):
    """The same GGUF with every weight as F32."""
    reader = gguf.GGUFReader(path)
    writer = gguf.GGUFWriter(out, reader.get_field("general.architecture").contents())
    for key, field in reader.fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture":
            elements = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(key, field.contents(), field.types[0], elements)
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        writer.add_tensor(tensor.name, values.reshape(tensor.shape[::-1].tolist()))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def compare(options, path, prompt, tokens, logits):
    """For each position: (largest difference, distance of our best two, same choice), in deviations."""
    llama = peer.Llama(options.python, path, options.threads, len(prompt) + options.greedy + 64)
    positions = []
    for index, token in enumerate(tokens):
        theirs = llama.ask(op="next", prompt=prompt + tokens[:index], top=TOP)
        # llama.cpp lists nothing for a token that is half a character.
        if not theirs:
            continue
        row = logits[index]
        logprobs = row - row.max() - np.log(np.exp(row - row.max()).sum())
        difference = max(abs(logprob - logprobs[id]) for id, logprob in theirs) / row.std()
        best = np.partition(row, -2)[-2:]
        positions.append((difference, (best[1] - best[0]) / row.std(), theirs[0][0] == token))
    llama.close()
    return positions


def report(what, verdict, positions, tokens):
    differences = [difference for difference, _, _ in positions]
    agreed = sum(same for _, _, same in positions)
    print(f"{verdict:5} {what}: same choice at {agreed} of {len(positions)} positions ({len(tokens) - len(positions)} "
          f"not listed, {len(set(tokens))} different tokens); the {TOP} likeliest differ by "
          f"{np.median(differences):.4f} deviations, at worst {max(differences):.4f}", flush=True)


def check(options, like, folder):
    mlx, file = peer.synthesize(options.millstream, like, options.layers, options.seed, folder, options.router)
    if options.wrong:
        _, file = peer.synthesize(options.millstream, like, options.layers, options.seed + 1, folder, options.router)
    random.seed(options.seed)
    # The vocabulary of the smallest shape is 4096.
    prompt = [random.randrange(4096) for _ in range(options.prompt_tokens)]
    tokens, logits = ours(options, mlx, prompt)
    small = file.stat().st_size < EXACT_LIMIT_BYTES
    exact_passed = True
    if small:
        with tempfile.TemporaryDirectory() as scratch:
            exact = pathlib.Path(scratch) / "f32.gguf"
            as_f32(file, exact)
            positions = compare(options, exact, prompt, tokens, logits)
        worst = max(difference for difference, _, _ in positions)
        exact_passed = worst < EXACT_TOLERANCE and all(same for _, _, same in positions)
        report(f"{like}, exact", "ok" if exact_passed else "FAIL", positions, tokens)
    positions = compare(options, file, prompt, tokens, logits)
    differences = [difference for difference, _, _ in positions]
    # Two numbers can each be off by the largest difference.
    right = all(same or margin < 2 * max(differences) for _, margin, same in positions)
    near = np.median(differences) < MEDIAN_TOLERANCE and max(differences) < WORST_TOLERANCE
    verdict = "shown" if small else "ok" if right and near else "FAIL"
    report(f"{like}, as is", verdict, positions, tokens)
    # Too few positions prove nothing.
    return exact_passed and verdict != "FAIL" and len(positions) >= min(16, options.greedy)


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--like", action="append", help="shape; may be given several times")
    a.add_argument("--layers", type=int)
    a.add_argument("--router", choices=("uniform", "tuned"), help="tuned is for shapes with experts only")
    a.add_argument("--seed", type=int, default=1)
    a.add_argument("--prompt-tokens", type=int, default=48)
    a.add_argument("--greedy", type=int, default=32, help="positions to compare")
    a.add_argument("--wrong", action="store_true", help="compare with another model: must fail")
    a.add_argument("--threads", type=int, default=2)
    a.add_argument("--models", help="folder to keep the models in; by default they are removed")
    a.add_argument("--millstream", default=peer.default_millstream())
    a.add_argument("--python", default=sys.executable, help="a Python with xllamacpp")
    options = a.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        passed = [check(options, like, options.models or folder) for like in options.like or TINY]
    sys.exit(not all(passed))


if __name__ == "__main__":
    main()
