#!/usr/bin/env python3
"""How fast direct reads are, by how much memory they land in.

    benches/landing.py /models/some/model-00001-of-00002.safetensors

A plain test of a disk reads into the same few megabytes again and again. Experts land in gigabytes of slots, each place
rarely, and some disks (those of virtual machines, where the host has to find every page) are slower at that. This reads
the same requests from random places of one file into more and more memory, in turns, so that what else the disk does
meets all of them alike. The last column is the ratio to the smallest.
"""

import argparse
import concurrent.futures
import mmap
import os
import random
import sys
import time

BLOCK = 4096
# Memory is cut into places of this size; a request lands at the beginning of one.
PLACE = 1 << 20


def turn(pool, handle, file_bytes, memory, width, request, count):
    """Bytes a second of `count` reads into the first `width` bytes."""
    def read(place):
        offset = random.randrange((file_bytes - request) // BLOCK) * BLOCK
        view = memory[place * PLACE:place * PLACE + request]
        if os.preadv(handle, [view], offset) != request:
            raise OSError(f"a short read at {offset}")

    # All places equally often, in no order. In little memory two reads may meet in one: the bytes are not used.
    places = [place % (width // PLACE) for place in random.sample(range(max(count, width // PLACE)), count)]
    start = time.perf_counter()
    list(pool.map(read, places))
    return count * request / (time.perf_counter() - start)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", help="a large file on the disk in question")
    parser.add_argument("--request-kb", type=int, default=512, help="size of a read (default: 512)")
    parser.add_argument("--depth", type=int, default=16, help="reads under way at once (default: 16)")
    parser.add_argument("--most-mb", type=int, default=2048, help="the most memory to land in (default: 2048)")
    parser.add_argument("--rounds", type=int, default=12, help="turns of each (default: 12)")
    options = parser.parse_args()
    request = options.request_kb << 10
    widths = [32 << 20]
    while widths[-1] * 2 <= options.most_mb << 20:
        widths.append(widths[-1] * 2)
    if not hasattr(os, "O_DIRECT"):
        sys.exit("this system has no direct reads (O_DIRECT)")
    handle = os.open(options.file, os.O_RDONLY | os.O_DIRECT)
    file_bytes = os.fstat(handle).st_size
    if not BLOCK <= request <= PLACE or request % BLOCK or file_bytes < 4 * widths[-1] // 3:
        sys.exit("reads are 4 to 1024 KiB, and the file must be larger than the memory: try --most-mb 512")
    pages = mmap.mmap(-1, widths[-1], flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    pages.madvise(mmap.MADV_HUGEPAGE)
    memory = memoryview(pages)
    for page in range(0, widths[-1], BLOCK):
        memory[page] = 1
    rates = {width: [] for width in widths}
    with concurrent.futures.ThreadPoolExecutor(options.depth) as pool:
        for _ in range(options.rounds):
            for width in widths:
                rates[width].append(turn(pool, handle, file_bytes, memory, width, request, (128 << 20) // request))
    print(f"{options.request_kb} KiB reads, {options.depth} at once, {options.rounds} turns of 128 MiB each, medians")
    middle = {width: sorted(of)[len(of) // 2] for width, of in rates.items()}
    for width, rate in middle.items():
        print(f"{width >> 20:6} MiB of memory: {rate / 1e9:5.2f} GB/s  {rate / middle[widths[0]]:.2f}")


if __name__ == "__main__":
    main()
