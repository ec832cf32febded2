"""Renders templates x conversations with Python: render.py OUT DIR...

Each DIR holds *.jinja files, or folders with a tokenizer_config.json. Writes
OUT/templates.json, OUT/cases.json and OUT/cells.jsonl, one line a cell:
{"template": ..., "case": ..., "text": ... or "error": ...}.
"""

import json
import pathlib
import sys

import cases
import reference


def read_templates(folders):
    found = {}
    for folder in map(pathlib.Path, folders):
        for path in sorted(folder.rglob("*.jinja")):
            found[path.stem] = path.read_text()
        for path in sorted(folder.rglob("tokenizer_config.json")):
            template = json.loads(path.read_text()).get("chat_template")
            if not template:
                sys.exit(f"no chat_template in {path}")
            named = template if isinstance(template, list) else [{"name": "", "template": template}]
            for entry in named:
                if entry["template"]:
                    found[f"{path.parent.name} {entry['name']}".strip()] = entry["template"]
    return found


def main(out, *folders):
    out = pathlib.Path(out)
    out.mkdir(parents=True, exist_ok=True)
    templates, conversations = read_templates(folders), cases.cases()
    if not templates:
        sys.exit("no templates found")
    env = reference.environment()
    rendered = failed = 0
    with open(out / "cells.jsonl", "w") as cells:
        for name, source in templates.items():
            for case, variables in conversations.items():
                text, error = reference.render(env, source, variables)
                cell = {"template": name, "case": case}
                cell.update({"error": error} if error else {"text": text})
                cells.write(json.dumps(cell) + "\n")
                rendered, failed = rendered + (not error), failed + bool(error)
    (out / "templates.json").write_text(json.dumps(templates))
    (out / "cases.json").write_text(json.dumps(conversations))
    print(f"python: {len(templates)} templates, {len(conversations)} conversations, {rendered} rendered, {failed} errors")


main(*sys.argv[1:])
