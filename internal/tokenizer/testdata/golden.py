"""Make the goldens of this directory with Hugging Face's own code.

    python3 golden.py [family ...]

Needs Python with `tokenizers` and `transformers`. The formats are described in
README.md. golden.py is also a module: ../interop/golden.py uses it for the real
models.
"""
import copy
import datetime
import gzip
import hashlib
import io
import json
import os
import struct
import sys

import jinja2
import tokenizers
import transformers
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils

sys.dont_write_bytecode = True

from conversations import conversations
from texts import texts

HERE = os.path.dirname(os.path.abspath(__file__))
NOW = datetime.datetime(2026, 1, 15, 12, 0, 0)  # what strftime_now shows in every golden
SHOWN_IDS = 24  # ids are written out for sequences up to this length


def digest(data):
    return hashlib.sha256(data).hexdigest()[:16]


def ids_digest(ids):
    return digest(struct.pack(f"<{len(ids)}I", *ids))


class Clock(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return NOW


chat_template_utils.datetime = Clock


# What an engine does to a request body before the template sees it. The facts
# are those of vLLM (vllm/entrypoints/chat_utils.py, vllm/renderers/hf.py and the
# OpenAI protocol classes). SGLang is not covered.

def content_format(template):
    """vLLM's "auto" content format: "openai" (parts are passed as a list) if the
    template loops over the content of a message, else "string" (parts are joined).
    """
    tree = chat_template_utils._compile_jinja_template(template).environment.parse(template)
    nodes = jinja2.nodes

    def reads(node, name, key=None):
        if isinstance(node, (nodes.Filter, nodes.Test)):
            return node.node is not None and reads(node.node, name, key)
        if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice):
            return reads(node.node, name, key)
        if key is None:
            return isinstance(node, nodes.Name) and node.ctx == "load" and node.name == name
        if isinstance(node, nodes.Getitem):
            return reads(node.node, name) and isinstance(node.arg, nodes.Const) and node.arg.value == key
        return isinstance(node, nodes.Getattr) and node.attr == key and reads(node.node, name)

    lists, todo = ["messages"], ["messages"]
    while todo:
        name = todo.pop(0)
        for assign in tree.find_all(nodes.Assign):
            if reads(assign.node, name):
                if not isinstance(assign.target, nodes.Name):
                    return "string"  # vLLM gives up on such a template
                lists.append(assign.target.name)
                if assign.target.name != name:
                    todo.append(assign.target.name)
    items = []
    for loop in tree.find_all(nodes.For):
        if any(reads(loop.iter, name) for name in lists):
            items.append(loop.target.name)
    for loop in tree.find_all(nodes.For):
        if any(reads(loop.iter, name, "content") for name in items):
            return "openai"
    return "string"


def parts_of(content):
    """Text parts of a message's content, in order. Null is no part; a string is one."""
    if content is None:
        return []
    if isinstance(content, str):
        return [content]
    out = []
    for part in content:
        if isinstance(part, str):
            out.append(part)
        elif part["type"] in ("text", "input_text", "output_text") and part["text"] is not None:
            out.append(part["text"])
        elif part["type"] == "refusal" and part["refusal"] is not None:
            out.append(part["refusal"])
    return out


def arguments_of(value):
    """A call's arguments: a JSON string is parsed, what is not JSON becomes {}."""
    if isinstance(value, str):
        try:
            return json.loads(value)
        except json.JSONDecodeError:
            return {}
    return value if isinstance(value, (dict, list)) else {}


def prepare_message(message, form):
    parts = parts_of(message.get("content"))
    role = message["role"]
    # A template that loops over content gets a list of text parts, also for a
    # plain string; any other gets one string with the parts joined by newlines.
    # A tool's parts are joined in both cases.
    if form == "openai" and role != "tool":
        out = {"role": role, "content": [{"type": "text", "text": p} for p in parts]}
    else:
        out = {"role": role, "content": "\n".join(parts)}
    if role == "assistant":
        calls = copy.deepcopy(message.get("tool_calls"))
        if calls:  # null and [] are dropped
            for c in calls:
                c["function"]["arguments"] = arguments_of(c["function"].get("arguments"))
            out["tool_calls"] = calls
        # Both names are accepted and both are set; `reasoning` is the newer one.
        thought = message.get("reasoning")
        if thought is None:
            thought = message.get("reasoning_content")
        if thought is not None:
            out["reasoning"] = thought
            out["reasoning_content"] = thought
    elif role == "tool" and "tool_call_id" in message:
        out["tool_call_id"] = message["tool_call_id"]
    elif role == "developer":
        out["tools"] = message.get("tools")
    if isinstance(message.get("name"), str):
        out["name"] = message["name"]
    return out


def prepare_tool(item):
    """The request class orders the known fields first and fills absent ones with null."""
    f = item["function"]
    function = {"name": f["name"], "description": f.get("description"), "parameters": f.get("parameters")}
    function.update({k: v for k, v in f.items() if k not in function})
    out = {"type": item.get("type", "function"), "function": function}
    out.update({k: v for k, v in item.items() if k not in out})
    return out


def prepare(body, form):
    """Messages and tools as the template gets them."""
    messages = [prepare_message(m, form) for m in body["messages"]]
    tools = [prepare_tool(t) for t in body["tools"]] if body.get("tools") is not None else None
    return messages, tools


# Goldens of one model directory.

def load(path):
    """The plain tokenizer, and transformers' wrapper for the templates."""
    plain = Tokenizer.from_file(os.path.join(path, "tokenizer.json"))
    plain.no_truncation()
    plain.no_padding()
    return plain, PreTrainedTokenizerFast.from_pretrained(path)


def shown(ids):
    return " " + " ".join(map(str, ids)) if 0 < len(ids) <= SHOWN_IDS else ""


def text_lines(plain, all_texts):
    for i, text in enumerate(all_texts):
        try:
            ids = plain.encode(text, add_special_tokens=False).ids
        except BaseException as e:  # a Rust panic is no Exception
            if type(e).__name__ != "PanicException":
                raise
            yield f"panic {i}"
            continue
        yield f"text {i} {len(ids)} {ids_digest(ids)}{shown(ids)}"
        back = plain.decode(ids, skip_special_tokens=False).encode()
        yield f"decode {i} {len(back)} {digest(back)}"
        if i % 8 == 0:
            ids = plain.encode(text, add_special_tokens=True).ids
            yield f"special {i} {len(ids)} {ids_digest(ids)}"


def template_of(fast, tools):
    return fast.get_chat_template(None, tools=tools)


def render(fast, body):
    """The prompt text of a request body, as transformers renders it."""
    template = template_of(fast, body.get("tools"))
    messages, tools = prepare(body, content_format(template))
    return fast.apply_chat_template(
        messages, tools=tools, tokenize=False,
        add_generation_prompt=body.get("add_generation_prompt", True),
        continue_final_message=body.get("continue_final_message", False),
        **body.get("chat_template_kwargs", {}),
    )


def chat_lines(plain, fast, all_conversations, shown_texts):
    rendered = 0
    for name, body in all_conversations:
        try:
            text = render(fast, body)
        except Exception as e:  # templates may fail with any error of Python
            yield f"error {name} {type(e).__name__}"
            continue
        ids = plain.encode(text, add_special_tokens=False).ids
        assert ids == fast(text, add_special_tokens=False).input_ids, name
        yield f"chat {name} {len(ids)} {ids_digest(ids)} {digest(text.encode())}"
        rendered += 1
        if name in shown_texts:
            yield f"render {name} {json.dumps(text, ensure_ascii=True)}"
    assert rendered >= 40, rendered


SHOWN_TEXTS = {"system_two_turns", "parallel", "call_with_text", "reasoning_call", "numbers", "tools_bare", "three_parts",
               "thinking_off_turns", "continue_space"}


def golden(path, all_texts, all_conversations, shown_texts=SHOWN_TEXTS):
    plain, fast = load(path)
    yield f"made tokenizers-{tokenizers.__version__} transformers-{transformers.__version__}"
    yield from text_lines(plain, all_texts)
    if fast.chat_template is None:
        return
    yield f"format {content_format(template_of(fast, None))} {content_format(template_of(fast, [{}]))}"
    yield from chat_lines(plain, fast, all_conversations, shown_texts)


# Shared files.

def write_gzip(path, lines):
    buffer = io.BytesIO()
    with gzip.GzipFile(fileobj=buffer, mode="wb", compresslevel=9, mtime=0) as f:
        f.write(("\n".join(lines) + "\n").encode())
    with open(path, "wb") as f:
        f.write(buffer.getvalue())


def write_lines(path, lines):
    with open(path, "w", encoding="utf-8") as f:
        f.write("\n".join(lines) + "\n")


def shared_files(all_texts, all_conversations):
    write_gzip(os.path.join(HERE, "texts.jsonl.gz"), [json.dumps(t) for t in all_texts])
    write_lines(os.path.join(HERE, "conversations.jsonl"),
                [json.dumps({"name": n, "body": b}, ensure_ascii=False) for n, b in all_conversations])
    prepared = []
    for name, body in all_conversations:
        for form in ("string", "openai"):
            messages, tools = prepare(body, form)
            prepared.append(json.dumps({"name": name, "format": form, "messages": messages, "tools": tools}))
    write_gzip(os.path.join(HERE, "prepared.jsonl.gz"), prepared)


def families():
    return sorted(d for d in os.listdir(HERE) if os.path.exists(os.path.join(HERE, d, "tokenizer.json")))


def main(names):
    all_texts, all_conversations = texts(), conversations()
    shared_files(all_texts, all_conversations)
    for name in names or families():
        lines = list(golden(os.path.join(HERE, name), all_texts, all_conversations))
        write_lines(os.path.join(HERE, name, "golden.txt"), lines)
        kinds = {}
        for line in lines:
            kind = line.split(" ", 1)[0]
            kinds[kind] = kinds.get(kind, 0) + 1
        print(f"{name:12}", kinds)


if __name__ == "__main__":
    main(sys.argv[1:])
