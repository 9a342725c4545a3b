#!/usr/bin/env python3
"""Render chat templates and small constructs with real Jinja2, for tests/templates.rs to compare.

usage: render_templates.py CASES CONSTRUCTS [TEMPLATES] > RESULTS

The environment is set up as the transformers library does it (utils/chat_template_utils.py): the
immutable sandbox, trim_blocks, lstrip_blocks, loop controls, the `generation` tag, json.dumps as
`tojson`, raise_exception, strftime_now. Every result is {"ok": text} or {"error": message}.
"""

import datetime
import functools
import json
import pathlib
import sys

from jinja2 import nodes
from jinja2.exceptions import TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

SPECIAL_TOKENS = ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token",
                  "mask_token"]
NOW = datetime.datetime(2026, 11, 15, 13, 14, 15)


class Generation(Extension):
    """The `generation` tag without its bookkeeping: only the body's text matters here."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


def environment() -> ImmutableSandboxedEnvironment:
    def raise_exception(message):
        raise TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                          sort_keys=sort_keys)

    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = NOW.strftime
    return env


@functools.cache
def compiled(env, source: str):
    return env.from_string(source)


def render(env, source: str, variables: dict) -> dict:
    try:
        return {"ok": compiled(env, source).render(**variables)}
    except Exception as error:  # a template may fail in any way; that it fails is the result
        return {"error": f"{type(error).__name__}: {error}"}


def template_of(folder: pathlib.Path, config: dict, tools) -> str | None:
    path = folder / "chat_template.jinja"
    if path.exists():
        return path.read_text(encoding="utf-8")
    path = folder / "chat_template.json"
    if path.exists():
        return json.loads(path.read_text(encoding="utf-8"))["chat_template"]
    template = config.get("chat_template")
    if isinstance(template, list):
        named = {entry["name"]: entry["template"] for entry in template}
        return named["tool_use"] if tools and "tool_use" in named else named.get("default")
    return template


def main() -> int:
    if len(sys.argv) < 3:
        print(__doc__, file=sys.stderr)
        return 2
    cases = json.loads(pathlib.Path(sys.argv[1]).read_text(encoding="utf-8"))
    constructs = json.loads(pathlib.Path(sys.argv[2]).read_text(encoding="utf-8"))
    env = environment()
    results = {"constructs": {}, "templates": {}}
    for name, source in constructs["constructs"].items():
        results["constructs"][name] = render(env, source, constructs["variables"])
    folders = sorted(pathlib.Path(sys.argv[3]).iterdir()) if len(sys.argv) > 3 else []
    for folder in folders:
        path = folder / "tokenizer_config.json"
        config = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        special = {}
        for name in SPECIAL_TOKENS:
            token = config.get(name)
            token = token.get("content") if isinstance(token, dict) else token
            if token is not None:
                special[name] = token
        rendered = {}
        for case in cases:
            tools = case.get("tools")
            source = template_of(folder, config, tools)
            if source is None:
                continue
            variables = {"messages": case["messages"], "tools": tools, "documents": None,
                         "add_generation_prompt": case.get("add_generation_prompt", True)}
            if "enable_thinking" in case:
                variables["enable_thinking"] = case["enable_thinking"]
            variables.update(special)
            variables.update(case.get("kwargs", {}))
            rendered[case["name"]] = render(env, source, variables)
        if rendered:
            results["templates"][folder.name] = rendered
    json.dump(results, sys.stdout, ensure_ascii=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
