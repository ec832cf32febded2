"""Make the goldens of the real models with Hugging Face's own code.

    golden.py strings <dir>                     write the random strings, once for all families
    golden.py make    <dir> <family>            goldens of <dir>/<family>
    golden.py explain <dir> <family> <set> <i>  ids of every string of chunk i, one JSON list a line

<dir>/random.bin holds the random strings, each as its length in bytes (uint32,
little-endian) and its UTF-8. <dir>/<family>/golden.txt is in the format of
../testdata/README.md. <dir>/<family>/{random,codepoints}.txt have one line a
chunk of strings: its hash (first 8 bytes of SHA-256, hex) over every string's
number of ids and ids, all uint32 little-endian.
"""
import array
import hashlib
import json
import os
import random
import struct
import sys

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "testdata"))

import golden
from conversations import conversations
from texts import code_point, fragment, texts
from tokenizers import Tokenizer

STRINGS = int(os.environ.get("WARMROUTE_INTEROP_STRINGS", "1000000"))
RANDOM_CHUNK = 1000
CODE_POINT_CHUNK = 512
LAST_CODE_POINT = 0x31FFF
SEED = 4


def short_text(rng):
    """A random string of 1 to 10 fragments; one in sixteen is random code points alone."""
    n = rng.randint(1, 10)
    if rng.random() < 0.0625:
        return "".join(code_point(rng) for _ in range(n))
    parts = []
    for _ in range(n):
        parts.append(fragment(rng))
        if rng.random() < 0.3:
            parts.append(" ")
    return "".join(parts)


def write_strings(folder):
    rng = random.Random(SEED)
    with open(os.path.join(folder, "random.bin"), "wb") as f:
        for _ in range(STRINGS):
            data = short_text(rng).encode()
            f.write(struct.pack("<I", len(data)) + data)


def random_chunks(folder):
    with open(os.path.join(folder, "random.bin"), "rb") as f:
        data = f.read()
    at, chunk = 0, []
    while at < len(data):
        (n,) = struct.unpack_from("<I", data, at)
        chunk.append(data[at + 4:at + 4 + n].decode())
        at += 4 + n
        if len(chunk) == RANDOM_CHUNK:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def code_point_chunks(_):
    """Each code point alone and between letters, digits and spaces."""
    points = [c for c in range(1, LAST_CODE_POINT + 1) if not 0xD800 <= c <= 0xDFFF]
    for i in range(0, len(points), CODE_POINT_CHUNK):
        yield [form(chr(c)) for c in points[i:i + CODE_POINT_CHUNK] for form in (str, lambda s: f"a{s}b {s}{s}1{s} \n{s}")]


SETS = {"random": random_chunks, "codepoints": code_point_chunks}


def chunk_digest(encodings):
    h = hashlib.sha256()
    for e in encodings:
        ids = e.ids
        h.update(array.array("I", [len(ids)] + ids).tobytes())
    return h.hexdigest()[:16]


def plain_tokenizer(path):
    tok = Tokenizer.from_file(os.path.join(path, "tokenizer.json"))
    tok.no_truncation()
    tok.no_padding()
    return tok


def make(folder, family):
    path = os.path.join(folder, family)
    everything = conversations()
    lines = golden.golden(path, texts(), everything, {n for n, _ in everything})
    golden.write_lines(os.path.join(path, "golden.txt"), list(lines))
    tok = plain_tokenizer(path)
    for name, chunks in SETS.items():
        with open(os.path.join(path, name + ".txt"), "w", encoding="utf-8") as f:
            for chunk in chunks(folder):
                f.write(chunk_digest(tok.encode_batch_fast(chunk, add_special_tokens=False)) + "\n")


def explain(folder, family, name, index):
    tok = plain_tokenizer(os.path.join(folder, family))
    for i, chunk in enumerate(SETS[name](folder)):
        if i == index:
            for e in tok.encode_batch_fast(chunk, add_special_tokens=False):
                print(json.dumps(e.ids))
            return
    raise SystemExit(f"no chunk {index} in {name}")


def main(args):
    if args[0] == "strings":
        write_strings(args[1])
    elif args[0] == "make":
        make(args[1], args[2])
    elif args[0] == "explain":
        explain(args[1], args[2], args[3], int(args[4]))
    else:
        raise SystemExit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
