"""What the scripts here share: running `millstream`, and llama.cpp in a process of its own."""

import json
import os
import pathlib
import struct
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent


def default_millstream():
    return str(HERE.parent / "target" / "release" / "millstream")


def default_models():
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return str(pathlib.Path(cache) / "millstream" / "synth")


def run(command):
    """Runs a command; its stdout, or the end of this program with its stderr."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} failed ({done.returncode}):\n{done.stderr[-2000:]}")
    return done.stdout


def synthesize(millstream, like, layers, seed, folder):
    """The model in both formats, made if it is not there: (MLX folder, GGUF file)."""
    name = f"{like}-{layers}l-s{seed}" if layers else f"{like}-s{seed}"
    mlx, gguf = pathlib.Path(folder) / name, pathlib.Path(folder) / f"{name}.gguf"
    # Both appear only when they are complete: config.json is written last, the GGUF renamed.
    for out, form, whole in ((mlx, "mlx", (mlx / "config.json").exists()), (gguf, "gguf", gguf.exists())):
        if not whole:
            print(f"writing {out}", file=sys.stderr)
            command = [millstream, "synth", "--like", like, "--seed", seed, "--format", form, "--force", out]
            run(command + (["--layers", layers] if layers else []))
    return mlx, gguf


class Llama:
    """llama.cpp with a model loaded, until it is closed."""

    def __init__(self, python, gguf, threads, context):
        command = [python, HERE / "llama_peer.py", gguf, "--threads", threads, "--context", context]
        self.process = subprocess.Popen([str(part) for part in command], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.build = "xllamacpp " + self._answer()["xllamacpp"]

    def ask(self, **request):
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return self._answer()

    def _answer(self):
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"llama.cpp ended with {self.process.wait()}: is `pip install xllamacpp gguf` done for "
                     "the --python given?")
        return json.loads(line)

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def read_safetensors(path):
    """Tensors of a safetensors file as (dtype, shape, bytes)."""
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
        data = file.read()
    header.pop("__metadata__", None)
    return {name: (t["dtype"], t["shape"], data[slice(*t["data_offsets"])]) for name, t in header.items()}
