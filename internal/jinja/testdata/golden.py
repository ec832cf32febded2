"""Rewrites the goldens of this folder with Python's jinja2: golden.py (no arguments).

constructs.txt: every entry of template lines gets the line Python renders, "= JSON
string", or "! exception type". chat/: every template there x every conversation of
../interop/cases.py goes to chat/cells.txt as a hash, with chat/cases.json beside it.
"""

import hashlib
import json
import pathlib
import sys

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "interop"))

import cases  # noqa: E402
import reference  # noqa: E402


def result_of(env, source, variables):
    text, error = reference.render(env, source, variables)
    return f"! {error.split(':')[0]}" if error else f"= {json.dumps(text)}"


def entries(lines):
    """Yields comments and blank lines as they are and entries as lists of lines.

    An entry ends at its result line; in a file without results every line is one.
    """
    entry = []
    for line in lines:
        if not entry and (line == "" or line.startswith("# ")):
            yield line
        elif line.startswith(("= ", "! ")):
            yield entry
            entry = []
        else:
            entry.append(line)
    if entry:
        sys.exit(f"entry without a result: {entry}")


def constructs(env):
    path = HERE / "constructs.txt"
    variables = json.loads((HERE / "vars.json").read_text())
    out = []
    for entry in entries(path.read_text().split("\n")):
        if isinstance(entry, str):
            out.append(entry)
        else:
            out += entry + [result_of(env, "\n".join(entry), variables)]
    path.write_text("\n".join(out).rstrip("\n") + "\n")


def chat(env):
    conversations = cases.cases()
    lines = []
    for path in sorted((HERE / "chat").glob("*.jinja")):
        source = path.read_text()
        for name, variables in conversations.items():
            text, error = reference.render(env, source, variables)
            digest = "error" if error else hashlib.sha256(text.encode()).hexdigest()[:16]
            lines.append(f"{path.stem} {name} {digest}")
    (HERE / "chat" / "cells.txt").write_text("\n".join(lines) + "\n")
    cells = [f"{json.dumps(k)}: {json.dumps(v, ensure_ascii=False)}" for k, v in conversations.items()]
    (HERE / "chat" / "cases.json").write_text("{\n" + ",\n".join(cells) + "\n}\n")


env = reference.environment()
constructs(env)
chat(env)
