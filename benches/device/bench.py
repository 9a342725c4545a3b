#!/usr/bin/env python3
"""Measures `millstream` on this machine and prints one JSON: what the machine is, and `bench` of models made in memory.

    ./bench.py                                           # a few shapes, whole
    ./bench.py --shapes qwen3.5-35b-a3b:12,gpt-oss-20b   # the first 12 layers of one, all of the other
    ./bench.py --out result.json -- --threads 8          # what follows `--` goes to `millstream bench`

Wants Python 3.8 and nothing else; no network, no model file. A shape that cannot be measured is in the JSON with its error,
and the exit code is 1. Files in `vulkan/` next to this script are used before the machine's own.
"""

import argparse
import json
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
SHAPES = "qwen3-0.6b,qwen3.5-4b,gpt-oss-20b,qwen3-30b-a3b,qwen3.5-35b-a3b"
# Where drivers of Vulkan are described (the loader's documentation: LoaderInterfaceArchitecture).
DRIVERS = ("/usr/share/vulkan/icd.d", "/etc/vulkan/icd.d", "/usr/local/share/vulkan/icd.d")


def asked(*command):
    """What a command says, or nothing where it is not there or fails."""
    if not shutil.which(command[0]):
        return None
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def accelerators():
    """What can be said of accelerators without a library."""
    query = "--query-gpu=name,memory.total,driver_version,pcie.link.gen.current,pcie.link.width.current"
    nvidia = asked("nvidia-smi", query, "--format=csv,noheader") or ""
    nodes = [path for pattern in ("dri/*", "nvidia[0-9]*", "kfd") for path in pathlib.Path("/dev").glob(pattern)]
    drivers = [path for folder in DRIVERS for path in pathlib.Path(folder).glob("*.json")]
    return {
        "nvidia": nvidia.splitlines(),
        "device_nodes": sorted(map(str, nodes)),
        "vulkan_drivers": sorted(map(str, drivers)),
        "vulkan_summary": asked("vulkaninfo", "--summary"),
    }


def environment(vulkan):
    """This program's variables, with the packed files of Vulkan before the machine's own."""
    variables = dict(os.environ)
    if vulkan.is_dir():
        before = variables.get("LD_LIBRARY_PATH")
        variables["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, (str(vulkan), before)))
        drivers = os.pathsep.join(sorted(map(str, vulkan.glob("*.json"))))
        if drivers:  # the second name is what loaders before 1.3.207 know
            variables["VK_DRIVER_FILES"] = variables["VK_ICD_FILENAMES"] = drivers
    return variables


def measure(program, shape, options, variables):
    """`bench` of one shape: its report, or what went wrong."""
    name, _, layers = shape.partition(":")
    command = [str(program), "bench", "--synthetic", name, "--json", "--prompt-tokens", options.prompt_tokens,
               "--gen-tokens", options.gen_tokens, "--repeat", options.repeat]
    command += ["--layers", layers] if layers else []
    command += options.rest
    print(f"measuring {shape} …", file=sys.stderr)
    start, result = time.monotonic(), {"shape": name, "layers": int(layers) if layers else None, "arguments": command[1:]}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=options.timeout, env=variables)
        if done.returncode == 0:
            result["report"] = json.loads(done.stdout)
        else:
            result["error"] = f"exit code {done.returncode}"
        result["said"] = done.stderr.strip()
    except subprocess.TimeoutExpired:
        result["error"] = f"not done after {options.timeout} seconds"
    except (OSError, ValueError) as error:
        result["error"] = str(error)
    return {**result, "seconds": round(time.monotonic() - start, 1)}


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--shapes", default=SHAPES, help="names that `synth` knows, with :LAYERS for fewer [%(default)s]")
    a.add_argument("--prompt-tokens", default="128,512")
    a.add_argument("--gen-tokens", default="64")
    a.add_argument("--repeat", default="3")
    a.add_argument("--timeout", type=float, default=600, help="seconds for a shape [%(default)s]")
    a.add_argument("--program", type=pathlib.Path, default=HERE / "millstream")
    a.add_argument("--out", type=pathlib.Path, help="file for the JSON, which is printed anyway")
    arguments = sys.argv[1:]
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    options = a.parse_args(arguments[:cut])
    options.rest = arguments[cut + 1:]

    variables = environment(HERE / "vulkan")
    pack = HERE / "pack.json"
    report = {
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "pack": json.loads(pack.read_text()) if pack.is_file() else None,
        "system": {"platform": platform.platform(), "libc": " ".join(platform.libc_ver()), "load": os.getloadavg()},
        "accelerators": accelerators(),
        "results": [],
    }
    for shape in options.shapes.split(","):
        report["results"].append(measure(options.program, shape.strip(), options, variables))
        text = json.dumps(report, indent=2, ensure_ascii=False) + "\n"
        if options.out:  # after every shape: what is measured is kept, whatever ends the next
            options.out.write_text(text)
    print(text, end="")
    return 1 if any("error" in result for result in report["results"]) else 0


if __name__ == "__main__":
    sys.exit(main())
