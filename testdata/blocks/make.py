#!/usr/bin/env python3
"""Makes what the kernels of GGUF's block formats are checked against, and the tables of their grids.

    pip install gguf==0.19.0 numpy
    python make.py > values.txt                                             # a digest for each format
    python make.py --grids > ../../crates/compute/src/cpu/dot/blocks/grids.rs

The blocks of a format are pseudo-random bytes of its number as a seed (SplitMix64, the low byte of each word) in
which scales are made sensible numbers. The decoder is that of the package `gguf`; Q1_0 and Q2_0, which it lacks,
are decoded here. A digest is FNV-1a, 64 bits, of the decoded f32 values as little-endian bytes.
"""

import hashlib
import sys

import numpy as np
from gguf import quants
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

BLOCKS = 256
# Name: number, weights and bytes of a block, the high bytes of its f16 scales.
FORMATS = {
    "Q4_0": (2, 32, 18, [1]), "Q4_1": (3, 32, 20, [1, 3]), "Q5_0": (6, 32, 22, [1]), "Q5_1": (7, 32, 24, [1, 3]),
    "Q8_0": (8, 32, 34, [1]), "Q2_K": (10, 256, 84, [81, 83]), "Q3_K": (11, 256, 110, [109]),
    "Q4_K": (12, 256, 144, [1, 3]), "Q5_K": (13, 256, 176, [1, 3]), "Q6_K": (14, 256, 210, [209]),
    "IQ2_XXS": (16, 256, 66, [1]), "IQ2_XS": (17, 256, 74, [1]), "IQ3_XXS": (18, 256, 98, [1]),
    "IQ1_S": (19, 256, 50, [1]), "IQ4_NL": (20, 32, 18, [1]), "IQ3_S": (21, 256, 110, [1]),
    "IQ2_S": (22, 256, 82, [1]), "IQ4_XS": (23, 256, 136, [1]), "IQ1_M": (29, 256, 56, [55]),
    "TQ1_0": (34, 256, 54, [53]), "TQ2_0": (35, 256, 66, [65]), "MXFP4": (39, 32, 17, []),
    "NVFP4": (40, 64, 36, []), "Q1_0": (41, 128, 18, [1]), "Q2_0": (42, 64, 18, [1]),
}  # fmt: skip

# Name, what it is called in Rust, bits of a level, levels, SHA-256 of the table as signed bytes.
GRIDS = [
    ("IQ2_XXS", "IQ2_XXS", 2, [8, 25, 43], "05826b5d3e472a3a78f196be62ac78acf81df0f909626e12ab9fa2a5d490dd54"),
    ("IQ2_XS", "IQ2_XS", 2, [8, 25, 43], "06e47aaca60b4dc1d9b5a3f34540437058a6b142b4d7a59d5ded769b4d1bf1de"),
    ("IQ2_S", "IQ2_S", 2, [8, 25, 43], "e1aa1473412b0552c2174c30ef22ab4073f6a181b85a17056e8249bd2932fd88"),
    ("IQ3_XXS", "IQ3_XXS", 3, [4, 12, 20, 28, 36, 44, 52, 62], "46e35f5a997efdee6c99ce57854c8a0d4f0ff8ca57e5e8a60c0793ea580acf5d"),
    ("IQ3_S", "IQ3_S", 3, [1, 3, 5, 7, 9, 11, 13, 15], "bd1af4945a1717c65610b0284e4628b9a1ba3b306fae3a06f6e5f597356e349f"),
    ("IQ1_S", "IQ1", 2, [-1, 0, 1], "07540ffc1aeaf6ad4d97e96b0fcc765aae39671d4ae4a27bbd0e796fde167c6a"),
]  # fmt: skip

HEAD = """\
//! The grids of the IQ formats: which magnitudes an index stands for, found by clustering and not by a formula.
//!
//! An entry holds levels, the first in its lowest bits: eight of 2 bits, or four of 3 bits (IQ3). The numbers are
//! those of llama.cpp (`ggml-common.h`) and of the Python package `gguf`, both under the MIT licence, copyright
//! (c) 2023 Georgi Gerganov; `testdata/blocks/make.py` wrote this file and says what was checked.
"""


def fnv(data):
    digest = 0xCBF29CE484222325
    for byte in data:
        digest = (digest ^ byte) * 0x100000001B3 % 2**64
    return digest


def random_bytes(seed, count):
    with np.errstate(over="ignore"):
        z = np.uint64(seed) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return (z ^ (z >> np.uint64(31))).astype(np.uint8)


def random_blocks(name):
    number, _, size, halves = FORMATS[name]
    blocks = random_bytes(number, BLOCKS * size).reshape(BLOCKS, size)
    for at in halves:
        blocks[:, at] = blocks[:, at] & 0x8F | 0x20  # a magnitude of 2^-7 to 2^-3
    if name == "MXFP4":
        blocks[:, 0] &= 0x7F
    if name == "NVFP4":
        blocks[:, :4] &= 0x7F
    return blocks


def decode(name, blocks):
    if name not in ("Q1_0", "Q2_0"):
        return quants.dequantize(blocks, GGMLQuantizationType[name])
    width = 1 if name == "Q1_0" else 2
    d = blocks[:, :2].copy().view(np.float16).astype(np.float32)
    shifts = np.arange(0, 8, width, dtype=np.uint8)
    fields = (blocks[:, 2:, None] >> shifts & (1 << width) - 1).reshape(len(blocks), -1).astype(np.float32)
    return d * (2 * fields - 1 if name == "Q1_0" else fields - 1)


def digests():
    for name, (_, weights, size, _) in FORMATS.items():
        if name in GGMLQuantizationType.__members__:
            assert GGML_QUANT_SIZES[GGMLQuantizationType[name]] == (weights, size), name
        values = decode(name, random_blocks(name))
        assert values.size == BLOCKS * weights and np.isfinite(values).all(), name
        print(f"{name} {fnv(values.astype('<f4').tobytes()):016x}")


def grids():
    print(HEAD, end="")
    for name, constant, bits, levels, sha256 in GRIDS:
        entry = getattr(quants, name)
        entry.init_grid()
        table = entry.grid.reshape(entry.grid.shape[-2:]).astype(np.int8)
        assert hashlib.sha256(table.tobytes()).hexdigest() == sha256, name
        index = np.searchsorted(levels, table)
        assert (np.array(levels)[index] == table).all(), name
        packed = (index << bits * np.arange(table.shape[1])).sum(axis=1)
        print(f"\n/// Levels {', '.join(map(str, levels))}; FNV-1a of the table as signed bytes {fnv(table.tobytes()):#018x}.")
        print(f"#[rustfmt::skip]\npub(super) static {constant}: [u16; {len(packed)}] = [")
        for row in packed.reshape(-1, 16):
            print("    " + " ".join(f"{value:#06x}," for value in row))
        print("];")


if __name__ == "__main__":
    grids() if "--grids" in sys.argv else digests()
