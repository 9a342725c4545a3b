"""What the scripts here share: running `millstream`, and llama.cpp in a process of its own."""

import json
import os
import pathlib
import platform
import re
import struct
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent


def default_millstream():
    return str(HERE.parent / "target" / "release" / "millstream")


def default_models():
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return str(pathlib.Path(cache) / "millstream" / "synth")


def model_options(a):
    """Which synthetic model is measured."""
    a.add_argument("--like", default="qwen3.5-35b-a3b")
    a.add_argument("--layers", type=int, default=12, help="0 for all")
    a.add_argument("--seed", type=int, default=1)
    a.add_argument("--models", default=default_models(), help="folder for generated models [%(default)s]")


def report_options(a):
    """What is measured, and where the result goes."""
    a.add_argument("--millstream", default=default_millstream())
    a.add_argument("--machine", default=platform.node(), help="name of this machine in the file's name")
    a.add_argument("--results", type=pathlib.Path, default=HERE / "results")


def load():
    """The machine's load before a measurement. Says so if something else is running."""
    before = os.getloadavg()[0]
    if before > 0.5:
        print(f"warning: something else is running here (load {before:.2f})", file=sys.stderr)
    return before


def run(command):
    """Runs a command; its stdout, or the end of this program with its stderr."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} failed ({done.returncode}):\n{done.stderr[-2000:]}")
    return done.stdout


def command_line(script):
    """How the script was called, for a results page: of absolute paths only the last name."""
    def plain(argument):
        option, equals, value = argument.rpartition("=")
        return f"{option}{equals}…/{pathlib.Path(value).name}" if os.path.isabs(value) else argument
    return " ".join([f"benches/{script}", *map(plain, sys.argv[1:])])


def facts(machine):
    """A machine in words, for a results page."""
    return (f"{machine['cpu']}, {machine['cores']} cores ({', '.join(machine['instructions'])}), {machine['memory_gb']} GB, "
            f"{machine['system']}")


def keep(folder, kind, machine, report, page):
    """Writes a report as JSON and as a page, and prints the page. `kind` is how their names begin."""
    folder.mkdir(parents=True, exist_ok=True)
    name = kind + (re.sub("[^A-Za-z0-9.-]+", "-", machine) or "machine")
    (folder / f"{name}.json").write_text(json.dumps(report, indent=2) + "\n")
    (folder / f"{name}.md").write_text(page)
    print(page)


def synthesize(millstream, like, layers, seed, folder, router=None, formats=("mlx", "gguf")):
    """The model in these formats, made if it is not there: (MLX folder, GGUF file).

    A uniform router is what `synth` makes when nothing is said, and its model has no word for it.
    """
    shape = f"{like}-{layers}l" if layers else like
    name = f"{shape}-s{seed}" if router in (None, "uniform") else f"{shape}-{router}-s{seed}"
    mlx, gguf = pathlib.Path(folder) / name, pathlib.Path(folder) / f"{name}.gguf"
    # Both appear only when they are complete: config.json is written last, the GGUF renamed.
    for out, form, whole in ((mlx, "mlx", (mlx / "config.json").exists()), (gguf, "gguf", gguf.exists())):
        if form in formats and not whole:
            print(f"writing {out}", file=sys.stderr)
            command = [millstream, "synth", "--like", like, "--seed", seed, "--format", form, "--force", out]
            command += ["--layers", layers] if layers else []
            run(command + (["--router", router] if router else []))
    return mlx, gguf


def synthesize_heads(millstream, like, layers, seed, mlx):
    """Draft heads for a generated model, made if they are not there: its MTP head goes into the model's own folder,
    next to weights that stay as they are; the folder of its DFlash draft is returned."""
    dflash = mlx.with_name(f"{mlx.name}-dflash")
    for head, out, whole in (("mtp", mlx, mlx / "mtp.safetensors"), ("dflash", dflash, dflash / "config.json")):
        if not whole.exists():
            print(f"writing {whole}", file=sys.stderr)
            command = [millstream, "synth", "--like", like, "--seed", seed, "--head", head, "--force", out]
            run(command + (["--layers", layers] if layers else []))
    return dflash


def vocabulary(mlx):
    """The number of tokens a model in a folder knows."""
    config = json.loads((pathlib.Path(mlx) / "config.json").read_text())
    return config.get("text_config", config)["vocab_size"]


def experts_per_token(mlx):
    """The experts that a token uses of each layer, of a model in a folder."""
    config = json.loads((pathlib.Path(mlx) / "config.json").read_text())
    config = config.get("text_config", config)
    names = ("num_experts_per_tok", "top_k_experts", "experts_per_token")
    return next(config[name] for name in names if config.get(name))


def bench_tokens(count, vocab):
    """The prompt that the first repeat of `millstream bench` draws, token for token (crates/workbench/src/bench.rs)."""
    return [((index + 1) * 0x9E3779B97F4A7C15 % 2**64 >> 20) % vocab for index in range(count)]


class Ended(SystemExit):
    """llama.cpp is gone. Where it is not caught, the script ends with the text."""

    def __init__(self, exit_code, text):
        super().__init__(text)
        self.exit_code = exit_code


class Llama:
    """llama.cpp with a model loaded, until it is closed.

    `options` go to llama_peer.py; `group` is a group of under_limit.py to run in.
    """

    def __init__(self, python, gguf, threads, context, options=(), group=None):
        command = [python, HERE / "llama_peer.py", gguf, "--threads", threads, "--context", context, *options]
        command = group.command(command) if group else [str(part) for part in command]
        self.errors = tempfile.TemporaryFile("w+", errors="replace")
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors,
                                        text=True)
        ready = self._answer()
        self.build = "xllamacpp " + ready["xllamacpp"]
        self.address = ready["address"].removeprefix("http://")

    def ask(self, **request):
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # The answer will say how it ended.
        return self._answer()

    def _answer(self):
        line = self.process.stdout.readline()
        if not line:
            code = self.process.wait()
            self.errors.seek(0)
            # A signal is no matter of what is installed.
            hint = "" if code < 0 else ": is `pip install xllamacpp gguf` done for the --python given?"
            raise Ended(code, f"llama.cpp ended with {code}{hint}\n{self.errors.read()[-1000:]}".rstrip())
        return json.loads(line)

    def close(self):
        """Ends it; its exit code."""
        self.process.stdin.close()
        return self.process.wait()


def read_safetensors(path):
    """Tensors of a safetensors file as (dtype, shape, bytes)."""
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
        data = file.read()
    header.pop("__metadata__", None)
    return {name: (t["dtype"], t["shape"], data[slice(*t["data_offsets"])]) for name, t in header.items()}
