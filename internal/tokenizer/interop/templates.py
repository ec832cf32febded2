"""Give a model directory without a chat template one of ours.

    templates.py <template.jinja> <model dir>

The packages that ship these tokenizers leave the template out for some models.
A directory that has one is left alone.
"""
import json
import os
import sys

template, folder = sys.argv[1:]
path = os.path.join(folder, "tokenizer_config.json")
with open(path, encoding="utf-8") as f:
    config = json.load(f)
if not config.get("chat_template"):
    with open(template, encoding="utf-8") as f:
        config["chat_template"] = f.read()
    with open(path, "w", encoding="utf-8") as f:
        json.dump(config, f, ensure_ascii=False, indent=2)
