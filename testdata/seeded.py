"""Weights from a seed: what `weights.txt` next to a golden model says, and the bytes it stands for.

A checkpoint's bytes are not kept, only how they are made. The same rule is in crates/golden/build.rs; README.md states it.
"""

import json
import re

import numpy as np

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
BELL = np.float32(2.6428e-5)  # the deviation of four sixteen-bit numbers' sum is 65536 / √3
NUMPY = {"F32": np.float32, "F16": np.float16, "U32": np.uint32, "U8": np.uint8}
BYTES = {"F32": 4, "F16": 2, "BF16": 2, "U32": 4, "U8": 1}
E2M1_STD = 2.926  # of a uniform code
E4M3 = (0x40, 63)  # codes from 2 to 448, the largest; the next is no number
E4M3_STD = (sum(((8 + code % 8) / 8 * 2.0 ** (code // 8 - 7)) ** 2 for code in range(E4M3[0], sum(E4M3))) / E4M3[1]) ** 0.5
MASK = (1 << 64) - 1


# ---------------------------------------------------------------- the generator


def mix(word):
    """The finaliser of SplitMix64."""
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))


def words(seed, name, count):
    """The first `count` words of a tensor."""
    with np.errstate(over="ignore"):
        key = mix(np.uint64((seed + int(GOLDEN)) & MASK))
        for byte in name.encode():
            key = mix(key ^ np.uint64(byte))
        return mix(key + np.arange(1, count + 1, dtype=np.uint64) * GOLDEN)


def stored(values, dtype):
    """f32 values as the bytes of a type, rounded to the nearest, to even where two are as near."""
    if dtype != "BF16":
        return values.astype(NUMPY[dtype]).tobytes()
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16).tobytes()


def floats(data, dtype):
    """The values of such bytes."""
    if dtype == "BF16":
        return (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32)
    return np.frombuffer(data, NUMPY[dtype]).astype(np.float32)


def fill(seed, tensors, name):
    """The bytes of a tensor of `tensors`, which has dtype, shape and rule by name."""
    dtype, shape, (kind, *arguments) = tensors[name]
    count = int(np.prod(shape, dtype=np.int64))
    if kind == "words":
        total = count * BYTES[dtype]
        return words(seed, name, -(-total // 8)).tobytes()[:total]
    if kind in ("bytes", "signed-bytes"):
        word = words(seed, name, count * BYTES[dtype])
        low, choices = map(np.uint64, arguments)
        sign = (word & np.uint64(kind == "signed-bytes")) << np.uint64(7)
        return (low + (word >> np.uint64(32)) % choices + sign).astype(np.uint8).tobytes()
    word = words(seed, name, count)
    if kind == "times":
        factor, other = arguments
        return stored(np.float32(factor) * floats(fill(seed, tensors, other), tensors[other][0]), dtype)
    scale, offset = map(np.float32, arguments)
    if kind == "normal":
        lanes = sum((word >> np.uint64(16 * lane)) & np.uint64(0xFFFF) for lane in range(4)).astype(np.int64)
        unit = (lanes - 131070).astype(np.float32) * BELL
    else:
        unit = (word >> np.uint64(40)).astype(np.float32) * np.float32(2**-24)
    values = offset + scale * unit
    if kind == "signed":
        values = np.where(word & np.uint64(1), -values, values)
    return stored(values, dtype)


def digest(data):
    """A sum that no changed byte leaves as it is."""
    data += b"\0" * (-len(data) % 8)
    with np.errstate(over="ignore"):
        each = np.frombuffer(data, np.uint64) + np.arange(1, len(data) // 8 + 1, dtype=np.uint64) * GOLDEN
        return int(mix(each).sum(dtype=np.uint64))


# ---------------------------------------------------------------- files


def header(path):
    """The header of a safetensors file: its length, its metadata, and dtype, shape and bytes by name, in their order."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    head = json.loads(data[8 : 8 + length])
    metadata = head.pop("__metadata__", {})
    entries = sorted(head.items(), key=lambda entry: entry[1]["data_offsets"])
    return length, metadata, {
        name: (e["dtype"], e["shape"], data[8 + length :][slice(*e["data_offsets"])]) for name, e in entries
    }


def write(path, length, metadata, tensors, data):
    """A safetensors file whose header is as long as the original's, so that what follows is aligned, or not, as there."""
    head, end = {"__metadata__": metadata} if metadata else {}, 0
    for name, (dtype, shape, _) in tensors.items():
        head[name] = dict(dtype=dtype, shape=shape, data_offsets=[end, end + len(data[name])])
        end += len(data[name])
    text = json.dumps(head, separators=(",", ":")).encode()
    assert len(text) <= length, f"{path}: a header of {len(text)} bytes, {length} before"
    path.write_bytes(length.to_bytes(8, "little") + text.ljust(length) + b"".join(data.values()))


class Files:
    """The weight files of a checkpoint: how each is laid out, and the rule of every tensor."""

    def __init__(self, files):
        self.files = files  # name: (header length, metadata, {tensor: (dtype, shape, rule)})

    @classmethod
    def of(cls, folder, model, quantization):
        """What a checkpoint that was just written becomes: its layout, with rules instead of its values."""
        path = folder / "model.safetensors"
        length, metadata, tensors = header(path)
        rules = Rules(model, quantization, tensors)
        tensors = {name: (dtype, shape, rules.of(name)) for name, (dtype, shape, _) in tensors.items()}
        return cls({path.name: (length, metadata, tensors)})

    def make(self, folder, seed):
        """Writes the weight files."""
        for file, (length, metadata, tensors) in self.files.items():
            data = {name: fill(seed, tensors, name) for name in tensors}
            write(folder / file, length, metadata, tensors, data)

    def describe(self, folder, target, seed):
        """Writes weights.txt about the files in a folder."""
        lines = [f"seed {seed}"]
        for file, (length, metadata, tensors) in self.files.items():
            lines += [f"file {file}", f"header {length}"]
            lines += [f"metadata {key} {value}" for key, value in metadata.items()]
            lines += [f"digest {digest((folder / file).read_bytes()[8 + length:]):016x}"]
            for name, (dtype, shape, rule) in tensors.items():
                sizes = "x".join(map(str, shape))
                lines.append(" ".join(["tensor", name, dtype, sizes, *map(text, rule)]))
        (target / "weights.txt").write_text("\n".join(lines) + "\n")


def read(path):
    """The seed and the files of a weights.txt."""
    seed, files = None, {}
    for line in path.read_text().splitlines():
        match line.split(" "):
            case ["seed", number]:
                seed = int(number)
            case ["file", name]:
                length, metadata, tensors = 0, {}, {}
                files[name] = (length, metadata, tensors)
            case ["header", number]:
                files[name] = (int(number), metadata, tensors)
            case ["metadata", key, value]:
                metadata[key] = value
            case ["tensor", tensor, dtype, sizes, kind, *arguments]:
                rule = (kind, *(float(a) if re.fullmatch(r"-?\d.*[.e].*", a) else int(a) if a.isdigit() else a for a in arguments))
                tensors[tensor] = (dtype, [int(size) for size in sizes.split("x")], rule)
    return seed, Files(files)


def text(argument):
    """A number as the shortest text that is the same f32."""
    return str(np.float32(argument)) if isinstance(argument, float) else str(argument)


# ---------------------------------------------------------------- which rule


class Rules:
    """Weights of about unit gain: every part of the network moves the logits, and rounding is not amplified much."""

    def __init__(self, model, quantization, tensors):
        self.config = model.config
        self.quantization = quantization
        self.tensors = tensors

    def of(self, name):
        dtype, shape, data = self.tensors[name]
        path, _, leaf = name.rpartition(".")
        if leaf.endswith(("_blocks", "_scales")):  # gpt-oss as published: rows of blocks of 32
            base = name.rpartition("_")[0]
            if leaf.endswith("_blocks"):
                return ("words",)
            return self.powers_of_two(self.spread(base, shape[-1] * 32) / E2M1_STD)
        if f"{path}.scales" not in self.tensors or leaf not in ("weight", "scales", "biases"):
            return self.plain(name, shape, float(floats(data, dtype)[0]))
        how = self.quantization.get(path, self.quantization)
        bits, group = how["bits"], how["group_size"]
        if leaf == "weight":
            return ("signed-bytes", *E4M3) if how.get("mode") == "mxfp8" else ("words",)
        std = self.spread(f"{path}.weight", self.tensors[f"{path}.scales"][1][-1] * group)
        match how.get("mode", "affine"):
            case "affine" if leaf == "biases":
                return ("times", -(2**bits - 1) / 2, f"{path}.scales")
            case "affine":  # a quarter more or less, and negative as often as not, as MLX has it
                unit = std / ((4**bits - 1) / 12) ** 0.5
                return ("signed", 0.5 * unit, 0.75 * unit)
            case "mxfp4":
                return self.powers_of_two(std / E2M1_STD)
            case "mxfp8":
                return self.powers_of_two(std / E4M3_STD)
            case "nvfp4":  # E4M3: five neighbours
                exponent = int(np.floor(np.log2(std / E2M1_STD)))
                mantissa = round(8 * (std / E2M1_STD / 2.0**exponent - 1))
                return ("bytes", 8 * (exponent + 7) + mantissa - 2, 5)
        raise ValueError(f"{name}: no rule for {how}")

    @staticmethod
    def powers_of_two(scale):
        """E8M0 scales: two to four neighbours, whichever come closest in root mean square."""
        mean = {n: np.log2((4**n - 1) / 3 / n) / 2 for n in (2, 3, 4)}
        low = {n: round(np.log2(scale) - mean[n]) for n in mean}
        choices = min(mean, key=lambda n: abs(low[n] + mean[n] - np.log2(scale)))
        return ("bytes", 127 + low[choices], choices)

    def spread(self, name, inputs):
        """The deviation of a matrix with so many inputs."""
        gemma = self.config.model_type.startswith("gemma")
        if self.config.model_type == "gpt_oss" and "experts." in name:
            # Gates and ups beyond the clamp at 7 now and then, and an output of usual size all the same.
            return (0.3 if "down_proj" in name else 3.0) / inputs**0.5
        if name.endswith("router.proj.weight"):  # its input is divided by the root of its width
            return 1.5
        if name.endswith("embed_tokens_per_layer.weight"):
            return self.config.hidden_size_per_layer_input**-0.5
        if "embed_tokens" in name:  # tied: small, or the model would repeat its last token
            return 1.5 / inputs if gemma else 0.1 if self.config.tie_word_embeddings else 0.7
        # attention averages its values: stronger, so that it is not drowned
        strong = re.search(r"self_attn\.[vo]_proj|(mlp|block_sparse_moe)\.(gate|router)\.weight", name)
        return (1.5 if strong else 1.0) / inputs**0.5

    def plain(self, name, shape, initial):
        """The rule of a tensor that is not quantized; norms start as 1, or as 0 where the model adds 1."""
        if name.endswith("layer_scalar"):
            return ("uniform", 0.6, 0.6)
        if name.endswith("sinks"):  # as much as a handful of keys
            return ("normal", 1.0, 2.0)
        if name.endswith("A_log"):  # decay rates of memories of a few to some hundred tokens
            return ("uniform", 2.0, -1.3)
        if name.endswith("dt_bias"):
            return ("uniform", 3.0, -4.0)
        if name.endswith("conv1d.weight"):
            return ("normal", 0.5, 0.0)
        if name.endswith("router.scale"):
            return ("normal", 0.1, 1.0)
        if name.endswith("router.per_expert_scale"):
            return ("uniform", 1.0, 0.5)
        if re.search(r"norm(_\d)?\.weight$", name):
            factor, added = 1.0, 0.0
            if self.config.model_type == "gemma4_text" and re.search(r"[qk]_norm", name):
                factor = 0.4  # scores are not divided by the root of the head's width
            elif self.config.model_type.startswith("gemma") and re.search(r"model\.norm\.weight$", name):
                factor, added = shape[0] ** 0.5 / 1.5, 1.0 - initial  # the tied table is small
            return ("normal", 0.1 * factor, (initial + added) * factor - added)
        if name.endswith("bias") or len(shape) == 1:
            return ("normal", 0.3, 0.0)
        return ("normal", self.spread(name, shape[-1]), 0.0)
