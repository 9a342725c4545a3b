#!/usr/bin/env python3
"""Packs what a run on another machine needs, one with an accelerator: less than 40 MiB, so that it travels anywhere.

    benches/device/pack.py                                              # target/millstream-device.tar.gz
    benches/device/pack.py /usr/lib/x86_64-linux-gnu/libvulkan.so.1     # and files of Vulkan, where that machine has none

In it: `millstream` without the models inside it (the cargo feature `builtin` off) and without symbols, `bench.py`, the
named files under `vulkan/`, and `pack.json`, which says what the pack was made from. Models are made on the other
machine, in memory. A pack of 40 MiB or more is refused. README.md says how to run it there.
"""

import argparse
import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
LIMIT_BYTES = 40 << 20
FOLDER = "millstream-device"
PROGRAM = "millstream"


def output(*command):
    """What a command says; its failure ends this program."""
    try:
        return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"error: {error}")


def build():
    """The program without built-in models, where cargo says that it lies."""
    command = ("cargo", "build", "--release", "--package", PROGRAM, "--no-default-features",
               "--message-format", "json-render-diagnostics")
    for line in output(*command).splitlines():
        message = json.loads(line)
        if message.get("executable") and message["target"]["name"] == PROGRAM:
            return pathlib.Path(message["executable"])
    sys.exit("error: cargo built no program")


def strip(source, target):
    """A copy without symbols."""
    shutil.copyfile(source, target)
    output("strip", "--strip-all", str(target))
    target.chmod(0o755)


def commit():
    """What the pack is made from, where git knows it."""
    done = subprocess.run(("git", "describe", "--always", "--dirty"), cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip() or None


def collect(folder, program, files):
    """Puts everything into a folder; a description of it."""
    strip(program, folder / PROGRAM)
    shutil.copyfile(HERE / "bench.py", folder / "bench.py")
    (folder / "bench.py").chmod(0o755)
    if files:
        (folder / "vulkan").mkdir()
    for file in files:
        target = folder / "vulkan" / file.name
        if target.exists():
            sys.exit(f"error: two files are called {file.name}")
        shutil.copyfile(file, target)  # what a link leads to, under the link's name
    packed = sorted(path for path in folder.rglob("*") if path.is_file())
    return {
        "commit": commit(),
        "files": {
            path.relative_to(folder).as_posix(): {
                "bytes": path.stat().st_size,
                "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
            }
            for path in packed
        },
    }


def write(folder, out):
    """The archive, without owners and times."""
    def plain(member):
        member.mode = 0o755 if member.isdir() else member.mode
        member.uid = member.gid = member.mtime = 0
        member.uname = member.gname = ""
        return member

    out.parent.mkdir(parents=True, exist_ok=True)
    unfinished = out.with_name(out.name + ".unfinished")
    try:
        with tarfile.open(unfinished, "w:gz", compresslevel=9) as archive:
            archive.add(folder, FOLDER, filter=plain)
        size = unfinished.stat().st_size
        if size >= LIMIT_BYTES:
            sys.exit(f"error: the pack has {size} bytes, and {LIMIT_BYTES} are the limit")
        os.replace(unfinished, out)
        return size
    finally:
        unfinished.unlink(missing_ok=True)


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("vulkan", nargs="*", type=pathlib.Path, metavar="FILE", help="file of Vulkan to take along: "
                   "the loader, a driver and its .json")
    a.add_argument("--program", type=pathlib.Path, help="a program that is built, instead of building one")
    a.add_argument("--out", type=pathlib.Path, default=ROOT / "target" / f"{FOLDER}.tar.gz", help="[%(default)s]")
    options = a.parse_args()
    for file in options.vulkan:
        if not file.is_file():
            sys.exit(f"error: {file} is not a file")
    program = options.program or build()
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        description = collect(folder, program, options.vulkan)
        (folder / "pack.json").write_text(json.dumps(description, indent=2) + "\n")
        size = write(folder, options.out)
    for name, file in description["files"].items():
        print(f"{file['bytes']:>12}  {name}")
    print(f"{size:>12}  {options.out}, {100 * size / LIMIT_BYTES:.0f} % of the limit")


if __name__ == "__main__":
    main()
