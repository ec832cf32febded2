"""The texts of the goldens: hand-written ones, and seeded random ones."""
import os
import random

HERE = os.path.dirname(os.path.abspath(__file__))

SPECIALS = [
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|image_pad|>", "<tool_call>", "</tool_call>",
    "<think>", "</think>", "<tool_response>", "<|fim_prefix|>", "<|begin_of_text|>", "<|eot_id|>",
    "<|start_header_id|>", "<|end_header_id|>", "<|reserved_special_token_5|>", "<s>", "</s>", "<unk>", "<pad>",
    "<bos>", "<eos>", "<mask>", "<start_of_turn>", "<end_of_turn>", "<unused3>", "<table>", "</td>", "<code>",
    "<image_soft_token>", "<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|return|>", "<|call|>",
    "<|endofprompt|>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[SYSTEM_PROMPT]", "<SPECIAL_30>", "[control_9]",
    "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>", "<｜tool▁sep｜>", "<|EOT|>",
    "<｜place▁holder▁no▁3｜>", "<|assistant|>", "<|user|>", "<|system|>", "<plain>", "<n>", "<sn>", "<l>", "<r>",
    "<lr>", "<nl>", "<nr>", "<nlr>", "<w>", "<nw>", "<wl>", "<wr>", "<wlr>", "<nwlr>", "Stop", "stop", "abc", "abcd",
    "e\u0301t\u00e9", "\u00e9t\u00e9", "e\u0301te\u0301",
]
PARTIAL = ["<|", "|>", "<|im_start", "im_end|>", "<|im_start|", "<|endoftext", "<thin", "</think", "<", "<<s>>", "[INST",
           "INST]", "<s", "<|eot_id|", "<｜", "｜>", "<｜User", "<start_of_turn", "<unused", "<SPECIAL_", "<|<|im_end|>|>"]
WHITE = [" ", "  ", "   ", "    ", "        ", "\t", "\t\t", "\t\t\t\t", "\n", "\n\n", "\n\n\n", "\r", "\r\n", "\r\n\r\n",
         " \n", "\n ", "  \n  ", "\t\n", "\u00a0", "\u00a0\u00a0", "\u2003", "\u2028", "\u2029", "\u3000", "\u0085",
         "\v", "\f", "\u200b", "\ufeff", "\u1680", "\u202f", "\u205f", "\u180e", "\x1c", "\x1f"]
MARKS = ["\u0301", "\u0300", "\u0308", "\u0323", "\u0327", "\u0345", "\u093c", "\u3099", "\u0653", "\u05b0", "\u07fd",
         "\u0898", "\u089b", "\u0c3c", "\u0d3b", "\u1df7", "\u1dfa", "\U00010f46", "\U0001e130", "\u0f71", "\u0f72",
         "\u1161", "\u11a8", "\u20dd", "\ufe0f", "\u200d", "\u034f", "\u1abf", "\u1ac1", "\u0897"]
WORDS = ["the", "The", "router", "Router", "HTTPServer", "getURLFor", "x", "I'm", "don't", "WE'LL", "it's", "'s", "'S",
         "'re", "'\u017f", "we\u2019re", "'ll", "'D", "'t'", "naïve", "Straße", "ǅungla", "ŉ", "ʼn", "İstanbul",
         "ﬁre", "Ωmega", "Å", "Å", "привет", "Москва", "γειά", "你好", "世界", "漢字", "ひらがな", "カタカナ", "ｶﾀｶﾅ", "한국어",
         "\u1112\u1161\u11ab", "مرحبا", "שלום", "हिन्दी", "தமிழ்", "ไทย", "ქართული", "ᏣᎳᎩ", "ⲁⲃⲅ", "𝐛𝐨𝐥𝐝", "𐐀𐐨",
         "\u0130\u0307", "क्‍ष", "ㄱㄴ", "々〆〇", "龥龦", "゠ヿ", "\U00020000", "\ua7dc", "\U00016d40", "\U0001e5d0"]
DIGITS = ["0", "7", "12", "345", "6789", "12345", "1234567890", "3.14159", "1,000,000", "0x1F", "1e-9", "٣٤٥", "१२३४",
          "①②", "½", "²³", "Ⅷ", "１２３", "𝟙𝟚𝟛", "๑๒๓๔", "〇", "\U00010d40\U00010d41", "\U0001ccf0", "2024-02-29T23:59:60Z"]
PUNCT = [".", ",", "!", "?", "...", "!!", "—", "–", "(", ")", "[]", "{}", "/", "//", "\\", "\\n", "#", "##", "*", "**",
         "_", "__", "==", "==>", "!=", "->", "::", "@", "$", "%", "&&", "||", "~", "`", "```", "\"", "'", "“", "”", "«",
         "。", "，", "！", "、", "「", "」", "·", "€", "£", "±", "∑", "→", "©", "^", "+", "<=", ">=", "</", "/>", "|", "\u2581",
         "\u2581\u2581", "Ġ", "Ċ", "<0x0A>", "<0xFF>"]
EMOJI = ["😀", "🎉", "👍🏽", "👩‍💻", "👨‍👩‍👧‍👦", "🏳️‍🌈", "🇩🇪", "🇫", "❤️", "☎", "1️⃣", "🫨", "🪿", "🧑🏿‍🚀", "⚡", "🏴󠁧󠁢󠁥󠁮󠁧󠁿", "🛜", "🫪"]
CONTROL = ["\x01", "\x02", "\x07", "\x08", "\x0e", "\x1b[0m", "\x7f", "\x80", "\x9f", "\u00ad", "\u200e", "\u202e",
           "\u2066", "\ufffe", "\uffff", "\ufffd", "\U0010ffff", "\U000e0001", "\U000f0000", "\ue000", "\ufdd0"]
GROUPS = [(WORDS, 8), (WHITE, 6), (PUNCT, 4), (DIGITS, 2), (MARKS, 1), (EMOJI, 1), (CONTROL, 1), (SPECIALS, 1),
          (PARTIAL, 1)]
LISTS = [g for g, _ in GROUPS]
WEIGHTS = [w for _, w in GROUPS]


def corpus_lines():
    with open(os.path.join(HERE, "corpus.txt"), encoding="utf-8") as f:
        return f.read().split("\n")


def code_point(rng):
    """A random scalar value, mostly of the first planes."""
    top = rng.choice([0x7f, 0x24f, 0x5ff, 0x1fff, 0x2fff, 0xffff, 0x1ffff, 0x10ffff])
    while True:
        c = rng.randint(1, top)
        if not 0xd800 <= c <= 0xdfff:
            return chr(c)


def fragment(rng):
    """A word, some white space, a mark, a special token or the like; now and then a random code point."""
    if rng.random() < 0.06:
        return code_point(rng)
    return rng.choice(rng.choices(LISTS, WEIGHTS)[0])


def random_text(rng):
    """A random string of 1 to 24 fragments; one in eight is random code points alone."""
    n = rng.randint(1, 24)
    if rng.random() < 0.125:
        return "".join(code_point(rng) for _ in range(n))
    parts = []
    for _ in range(n):
        parts.append(fragment(rng))
        if rng.random() < 0.35:
            parts.append(" ")
    return "".join(parts)


def handwritten():
    lines = [l for l in corpus_lines() if l]
    out = ["", " ", "  ", "\n", "a", "A", "é", "e\u0301", "中", "😀", "\x00", "a\x00b", "Hello, world!", " Hello", "Hello ",
           "  Hello  world  ", "\nHello\n", "hello\r\nworld\r\n", "tab\tseparated\tvalues\n"]
    out += lines
    out += WORDS + DIGITS + EMOJI
    out += [" " * n for n in (3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 64, 100)]
    out += ["\n" * n for n in (3, 4, 7, 8, 9, 16, 31, 32, 40)] + ["\t" * n for n in (2, 3, 8, 9, 31, 32)]
    out += ["x" + w + "y" for w in WHITE] + [w + w + "z" for w in WHITE] + [" " + w for w in WHITE]
    out += ["a" * n for n in (2, 7, 47, 48, 49, 100, 1000)] + ["ab" * 300, "abcdefghij" * 100, "é" * 200, "中" * 200]
    out += ["0" * n for n in (2, 3, 4, 5, 6, 7, 10, 30)] + ["9" * 200, "1 22 333 4444 55555", "a1b22c333d4444"]
    out += ["a" + m for m in MARKS] + ["a" + "".join(MARKS[i:i + 4]) for i in range(0, len(MARKS), 3)]
    out += ["\u0323\u0307a", "a\u0307\u0323", "s\u0323\u0307 \u1e9b\u0323", "\u1100\u1161\u11a8", "\uac00\u11a8",
            "\u0958\u0959", "\u2126\u212b\u212a", "\ufb1d\ufb2a", "\u0344", "\U0001d15e", "\u0f73\u0f75", "\u0340\u0341",
            "a\u05ae\u07fd\u0301b", "a\u0315\u0898\u0300b", "\u09c7\u09be \u0b47\u0b56", "\U000110a5\U000110ba",
            "\U00011131\U00011127", "a\u0327\u0d3b\u0301", "\u0c46\u0c56\u0c3c", "\U000113c2\U000113c2"]
    out += SPECIALS
    out += ["a" + s + "b" for s in SPECIALS] + [" " + s + " " for s in SPECIALS[::2]]
    out += ["x \n" + s + "\t\n y" for s in SPECIALS[::3]] + [s + s for s in SPECIALS[1::4]] + PARTIAL
    out += ["".join(SPECIALS), " ".join(SPECIALS), "\n".join(SPECIALS), "".join(PARTIAL), "".join(WHITE),
            "".join(MARKS), "".join(PUNCT), "".join(CONTROL), "".join(EMOJI), "".join(DIGITS), " ".join(WORDS)]
    out += ["I'm you're he's we'll they've I'd don't", "I'M YOU'RE HE'S WE'LL THEY'VE I'D DON'T",
            "it'\u017f it'\u017fs 'LL'll'Ll", "x's's 's'S ''s", "O'Neil's '90s rock'n'roll", "'tis 'twas",
            "Don't'stop'me'now", "HelloWORLD's helloWorld'Re", "ABCdef'll XYZ'VE", "don’t it’s"]
    out += ["https://example.org/a/b/c?x=1&y=2#frag", "/usr/local/bin/env", "C:\\Temp\\file.txt", "a//b///c", "x/\n\n/y",
            "foo_bar-baz.qux@example.org", "<div class=\"x\">y</div>", "\\u0041\\n\\t", "#!/bin/sh\nset -e\n",
            "    if x:\n        return\n\n\n    else:\n\tpass\n", "\t\tfor (;;) {\n\t\t}\r\n", "{\"a\": [1, 2.5, null]}"]
    return out


def mixed(rng, size):
    """About size bytes of lines, fragments and special tokens."""
    lines, parts, n = corpus_lines(), [], 0
    while n < size:
        p = rng.choice(lines) + "\n" if rng.random() < 0.5 else random_text(rng)
        parts.append(p)
        n += len(p.encode())
    return "".join(parts)


def texts():
    """All texts, the same list at every call; the order is the index in the goldens."""
    rng = random.Random(20260115)
    out = handwritten()
    out += [random_text(rng) for _ in range(250)]
    out += [mixed(rng, 3000) for _ in range(6)]
    out += ["lorem" * 2000, " " * 5000, "\n" * 3000, "wörd" * 1500, "a b " * 2500, "1" * 4000, "!?" * 2000, "字" * 2000]
    out.append(mixed(rng, 100 * 1024))
    return out


if __name__ == "__main__":
    t = texts()
    print(len(t), "texts,", sum(len(x.encode()) for x in t), "bytes")
