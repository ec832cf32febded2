"""Writes the Unicode tables of internal/tokenizer: classes.bin, words.bin, nfc.bin.

    pip install unicodedata2==16.0.0
    npm pack @unicode/unicode-9.0.0 && tar xzf unicode-unicode-9.0.0-*.tgz
    python3 generate.py package

The regular expressions of Hugging Face's tokenizers know Unicode 16; its NFC crate
knows Unicode 9, so a code point that was not assigned in 9.0 (the only thing read from
the npm package) has combining class 0 and no decomposition there.

classes.bin  4352 page numbers (one byte per 256 code points), then the pages: one byte of
             class bits per code point, see unicode.go
words.bin    little-endian uint32 pairs (first, last): the ranges of \\w in Rust's regex
nfc.bin      little-endian uint32 triples (code point, x, y): x = combining class and
             y = 0xFFFFFFFF, or a canonical decomposition x y (y = 0: a singleton)
             with bit 31 of the code point set when the pair must not be composed
"""

import pathlib
import struct
import subprocess
import sys

import unicodedata2 as ucd

assert ucd.unidata_version == "16.0.0"
HERE = pathlib.Path(__file__).parent
UPPER, LOWER, LETTER, MARK, NUMBER, SPACE, PUNCT, COMBINE = (1 << i for i in range(8))
WHITE_SPACE = {9, 10, 11, 12, 13, 32, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000}
# Other_Alphabetic outside L, M and Nl: circled and squared letters.
CIRCLED = {*range(0x24B6, 0x24EA), *range(0x1F130, 0x1F14A), *range(0x1F150, 0x1F16A), *range(0x1F170, 0x1F18A)}
CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]


def unassigned(package):
    """The code points without a character in Unicode 9."""
    module = pathlib.Path(package).resolve() / "General_Category/Unassigned/code-points.mjs"
    code = f"import u from '{module}'; console.log(u.join(' '))"
    text = subprocess.run(["node", "--input-type=module", "-e", code], check=True, capture_output=True, text=True).stdout
    found = {int(c) for c in text.split()}
    assert 0x0378 in found and 0x11938 in found and 0x41 not in found
    return found


def main(package):
    new = unassigned(package)
    ccc, decomposition = {}, {}
    for c in CODE_POINTS:
        if c in new:
            continue
        if ucd.combining(chr(c)):
            ccc[c] = ucd.combining(chr(c))
        d = ucd.decomposition(chr(c))
        if d and not d.startswith("<"):
            decomposition[c] = [int(x, 16) for x in d.split()]
    composes = {}
    for c, d in decomposition.items():
        if len(d) == 2 and ucd.normalize("NFC", chr(c)) == chr(c):
            composes[c] = d
    seconds = {d[1] for d in composes.values()} | {*range(0x1161, 0x1176), *range(0x11A8, 0x11C3)}

    def first(c):
        while c in decomposition:
            c = decomposition[c][0]
        return c

    def combines(c):
        """True unless c is unchanged by NFC and never joins or passes what stands before it."""
        if c in ccc or c in seconds or (c in decomposition and c not in composes):
            return True
        return first(c) in ccc or first(c) in seconds

    def classes(c):
        cat, b = ucd.category(chr(c)), 0
        if cat in ("Lu", "Lt"):
            b |= UPPER
        elif cat == "Ll":
            b |= LOWER
        elif cat in ("Lm", "Lo"):
            b |= LETTER
        elif cat[0] == "M":
            b |= MARK
        elif cat[0] == "N":
            b |= NUMBER
        elif cat[0] in "PS":
            b |= PUNCT
        if c in WHITE_SPACE:
            b |= SPACE
        if combines(c):
            b |= COMBINE
        return b

    table = bytearray(0x110000)
    for c in CODE_POINTS:
        table[c] = classes(c)
    pages, index = {}, bytearray()
    for start in range(0, 0x110000, 256):
        index.append(pages.setdefault(bytes(table[start : start + 256]), len(pages)))
    (HERE / "classes.bin").write_bytes(bytes(index) + b"".join(pages))

    ranges = []
    for c in CODE_POINTS:
        cat = ucd.category(chr(c))
        if cat[0] in "LM" or cat in ("Nd", "Nl", "Pc") or c in CIRCLED or c in (0x200C, 0x200D):
            if ranges and ranges[-1][1] == c - 1:
                ranges[-1][1] = c
            else:
                ranges.append([c, c])
    (HERE / "words.bin").write_bytes(b"".join(struct.pack("<II", *r) for r in ranges))

    out = [struct.pack("<III", c, v, 0xFFFFFFFF) for c, v in sorted(ccc.items())]
    for c, d in sorted(decomposition.items()):
        barred = 0 if c in composes else 1 << 31
        out.append(struct.pack("<III", c | barred, d[0], d[1] if len(d) == 2 else 0))
    (HERE / "nfc.bin").write_bytes(b"".join(out))
    print(len(pages), "pages,", len(ranges), "word ranges,", len(ccc), "marks,", len(decomposition), "decompositions")


main(sys.argv[1])
