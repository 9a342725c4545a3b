#!/usr/bin/env python3
"""Runs a command in a fresh control group with a memory limit, and reports what the kernel counted.

    sudo benches/under_limit.py --limit 2.6GiB --evict MODEL -- millstream run MODEL --memory 2.5GiB -p Hello

Works with the memory controller of cgroup version 1 or 2, whichever is mounted; needs root. The
command's stdout and stderr stay as they are; a line on stderr says how it went (--report FILE: as
JSON), and the exit code is the command's (128 + signal when killed, 137 by the kernel for memory).

Page cache counts like any other memory, but only for the group that read the page first: --evict
drops the pages of a file or a folder before. `limit_hits` is memory.failcnt (version 1) or the
`max` of memory.events (version 2): how often the group wanted a page, had none left and had to give
one up. A program that reads through mmap meets that all the time; one with a budget never should.
"""

import argparse
import contextlib
import itertools
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time

import disk

# How often what has no counter of its own is looked at: swap and anonymous memory.
WATCH_SECONDS = 0.25
_numbers = itertools.count(1)


class Unavailable(Exception):
    """This machine or this user cannot set a memory limit; the text says why."""


def size(text):
    """`16G` and `16GiB` are 16 · 2³⁰ bytes, `16GB` is 16 · 10⁹, as millstream reads them."""
    found = re.fullmatch(r"\s*([\d.]+)\s*([kmgt]?)(i?b|)\s*", text.lower())
    if not found:
        raise argparse.ArgumentTypeError(f"`{text}` is not a size; write it like 16G, 16GiB, 16GB or 512M")
    number, letter, unit = found.groups()
    return int(float(number) * (1000 if unit == "b" and letter else 1024) ** " kmgt".index(letter or " "))


def end_cleanly_on_signals():
    """Ctrl-C, SIGTERM and SIGHUP as one exception, so that groups and loop devices are removed. Only the
    first counts: `timeout` sends two, impatient people more, and a second would interrupt the removing."""
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    def end(number, _):
        for each in signals:
            signal.signal(each, signal.SIG_IGN)
        sys.exit(128 + number)
    for number in signals:
        signal.signal(number, end)


def _hierarchy():
    """(version, mount point) of the memory controller."""
    mounts = []
    for line in pathlib.Path("/proc/self/mountinfo").read_text().splitlines():
        before, after = line.split(" - ", 1)
        kind, _, options = after.split(" ", 2)
        mounts.append((kind, pathlib.Path(before.split()[4]), options.split(",")))
    for kind, mount, options in mounts:
        if kind == "cgroup" and "memory" in options:
            return 1, mount
    for kind, mount, _ in mounts:
        if kind == "cgroup2" and "memory" in (mount / "cgroup.controllers").read_text().split():
            return 2, mount
    raise Unavailable("no memory controller of cgroup version 1 or 2 is mounted")


def _fields(path):
    """The `name number` lines of a file."""
    return {name: int(value) for name, value in (line.split() for line in path.read_text().splitlines())}


def _swapped_out_pages():
    return _fields(pathlib.Path("/proc/vmstat"))["pswpout"]


class Group:
    """A control group with a memory limit, gone with all its processes when the context ends."""

    def __init__(self, limit_bytes):
        if os.geteuid() != 0:
            raise Unavailable("a memory limit needs root")
        self.limit_bytes = limit_bytes
        self.version, mount = _hierarchy()
        self.folder = mount / f"millstream-{os.getpid()}-{next(_numbers)}"
        self.swap_peak_bytes = self.anonymous_peak_bytes = 0

    def __enter__(self):
        try:
            if self.version == 2:
                self._delegate(self.folder.parent)
            self.folder.mkdir()
        except OSError as error:
            raise Unavailable(f"no group can be made in {self.folder.parent}: {error.strerror}") from error
        try:
            name = "memory.limit_in_bytes" if self.version == 1 else "memory.max"
            (self.folder / name).write_text(str(self.limit_bytes))
        except OSError as error:
            self.folder.rmdir()
            raise Unavailable(f"{name} cannot be set: {error.strerror}") from error
        self.swapped_out_before = _swapped_out_pages()
        self.over = threading.Event()
        self.watcher = threading.Thread(target=self._watch, daemon=True)
        self.watcher.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.watcher.join()
        # What is in the group was started by us. A process takes a moment to be gone.
        for _ in range(200):
            for process in (self.folder / "cgroup.procs").read_text().split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(process), signal.SIGKILL)
            with contextlib.suppress(OSError):
                self.folder.rmdir()
                return
            time.sleep(0.05)
        print(f"warning: {self.folder} could not be removed", file=sys.stderr)

    def command(self, command):
        """The command line that runs this command inside: it joins before it becomes the command."""
        join = 'echo $$ > "$0" && exec "$@"'
        return ["/bin/sh", "-c", join, str(self.folder / "cgroup.procs"), *map(str, command)]

    def run(self, command, timeout=None, **options):
        """Runs a command inside; subprocess.CompletedProcess with the exit code a shell would see."""
        done = subprocess.run(self.command(command), timeout=timeout, check=False, **options)
        done.returncode = shell_code(done.returncode)
        return done

    def figures(self):
        """What the kernel counted so far."""
        self._look()
        read = lambda name: int((self.folder / name).read_text())
        if self.version == 1:
            peak, hits = read("memory.max_usage_in_bytes"), read("memory.failcnt")
            kills = _fields(self.folder / "memory.oom_control").get("oom_kill")
        else:
            # memory.peak came with Linux 5.19.
            peak = read("memory.peak") if (self.folder / "memory.peak").exists() else None
            events = _fields(self.folder / "memory.events")
            hits, kills = events["max"], events["oom_kill"]
        return {"cgroup": self.version, "limit_bytes": self.limit_bytes, "peak_bytes": peak, "limit_hits": hits,
                "oom_kills": kills, "swap_peak_bytes": self.swap_peak_bytes,
                "anonymous_peak_bytes": self.anonymous_peak_bytes,
                # Of the whole machine: swap that came and went between two looks shows here.
                "machine_swapped_out_pages": _swapped_out_pages() - self.swapped_out_before}

    @staticmethod
    def _delegate(parent):
        control = parent / "cgroup.subtree_control"
        if "memory" not in control.read_text().split():
            control.write_text("+memory")

    def _look(self):
        stat = _fields(self.folder / "memory.stat")
        if self.version == 1:
            anonymous, swap = stat["rss"], stat.get("swap", 0)
        else:
            # Absent where the kernel counts no swap.
            current = self.folder / "memory.swap.current"
            anonymous, swap = stat["anon"], int(current.read_text()) if current.exists() else 0
        self.anonymous_peak_bytes = max(self.anonymous_peak_bytes, anonymous)
        self.swap_peak_bytes = max(self.swap_peak_bytes, swap)

    def _watch(self):
        while not self.over.wait(WATCH_SECONDS):
            self._look()


def shell_code(code):
    """Python's exit code as a shell says it: 128 + signal."""
    return 128 - code if code < 0 else code


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--limit", type=size, required=True, help="memory limit, e.g. 2.6GiB")
    a.add_argument("--evict", action="append", default=[], help="file or folder to drop from the page cache before")
    a.add_argument("--report", type=pathlib.Path, help="write what was counted as JSON")
    a.add_argument("command", nargs=argparse.REMAINDER, help="after `--`")
    options = a.parse_args()
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        a.error("no command given")
    end_cleanly_on_signals()
    disk.evict(*options.evict)
    try:
        with Group(options.limit) as group:
            start = time.monotonic()
            code = group.run(command).returncode
            figures = {"exit_code": code, "seconds": time.monotonic() - start} | group.figures()
    except Unavailable as error:
        sys.exit(f"error: {error}")
    print("under_limit: " + ", ".join(f"{key} {value:.1f}" if isinstance(value, float) else f"{key} {value}"
                                      for key, value in figures.items()), file=sys.stderr)
    if options.report:
        options.report.write_text(json.dumps(figures, indent=2) + "\n")
    sys.exit(code)


if __name__ == "__main__":
    main()
