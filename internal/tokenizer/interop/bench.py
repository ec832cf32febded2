"""Measure Hugging Face's tokenizers on one text, one thread.

    bench.py text <GOROOT> <out>         write 400,000 bytes of English, Go and Python
    bench.py measure <model dir> <text>  print MB/s, one JSON object

Run measure with TOKENIZERS_PARALLELISM=false and RAYON_NUM_THREADS=1. Cold is the
first encoding after loading, the median of fresh loads; warm is the median of the
following ones, with the library's own word cache filled. Both encode the whole
text in one call without special tokens, as the Go benchmarks do. Time is the
processor time of the process, so that other programs on the machine count less.
"""
import ast
import json
import os
import statistics
import sys
import time
import typing

SIZE = 400_000
HERE = os.path.dirname(os.path.abspath(__file__))


def english():
    """Prose: the corpus of the test data, then docstrings of Python's standard library."""
    with open(os.path.join(HERE, "..", "testdata", "corpus.txt"), encoding="utf-8") as f:
        yield f.read()[:3000]
    root = os.path.dirname(typing.__file__)
    for name in sorted(os.listdir(root)):
        if not name.endswith(".py"):
            continue
        with open(os.path.join(root, name), encoding="utf-8") as f:
            tree = ast.parse(f.read())
        for node in ast.walk(tree):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                doc = ast.get_docstring(node)
                if doc and len(doc) > 200 and ">>>" not in doc:
                    yield doc


def go(goroot):
    for name in ("net/http/server.go", "encoding/json/decode.go", "go/parser/parser.go", "strings/strings.go"):
        with open(os.path.join(goroot, "src", name), encoding="utf-8") as f:
            yield f.read()


def python():
    for name in ("argparse.py", "typing.py", "subprocess.py", "tarfile.py"):
        with open(os.path.join(os.path.dirname(typing.__file__), name), encoding="utf-8") as f:
            yield f.read()


def take(parts, size):
    out = ""
    for p in parts:
        out += p + "\n\n"
        if len(out.encode()) >= size:
            return out.encode()[:size].decode("utf-8", "ignore")
    raise SystemExit(f"only {len(out)} bytes of text found")


def write_text(goroot, out):
    third = SIZE // 3
    text = take(english(), SIZE - 2 * third) + take(go(goroot), third) + take(python(), third)
    with open(out, "w", encoding="utf-8") as f:
        f.write(text)
    print(f"{out}: {len(text.encode())} bytes")


def seconds(tok, text):
    start = time.process_time()
    n = len(tok.encode(text, add_special_tokens=False).ids)
    return time.process_time() - start, n


def measure(folder, path):
    from tokenizers import Tokenizer
    with open(path, encoding="utf-8") as f:
        text = f.read()
    size = len(text.encode())
    cold, warm, fast, loads = [], [], [], []
    for _ in range(3):
        start = time.process_time()
        tok = Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
        loads.append(time.process_time() - start)
        t, n = seconds(tok, text)
        cold.append(t)
        warm += [seconds(tok, text)[0] for _ in range(3)]
        start = time.process_time()
        tok.encode_batch_fast([text], add_special_tokens=False)
        fast.append(time.process_time() - start)
    print(json.dumps({
        "family": os.path.basename(folder), "bytes": size, "tokens": n,
        "cold_MBps": round(size / statistics.median(cold) / 1e6, 3),
        "warm_MBps": round(size / statistics.median(warm) / 1e6, 3),
        "warm_without_offsets_MBps": round(size / statistics.median(fast) / 1e6, 3),
        "load_s": round(statistics.median(loads), 3),
    }))


if __name__ == "__main__":
    if sys.argv[1] == "text":
        write_text(sys.argv[2], sys.argv[3])
    else:
        measure(sys.argv[2], sys.argv[3])
