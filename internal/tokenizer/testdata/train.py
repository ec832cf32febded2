"""Train the small tokenizers of this directory.

    python3 train.py [family ...]

Needs Python with `tokenizers`. Every family gets the normalizer, pre-tokenizer,
decoder, post-processor, flags, merge spelling and added-token layout of the
model family it is named after, and a vocabulary of our own: byte-pair encoding
trained on corpus.txt, which was written for this purpose. The patterns below are
facts of the file formats and are spelled as the published files spell them.
"""
import json
import os
import shutil
import sys

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

HERE = os.path.dirname(os.path.abspath(__file__))

QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN3_5 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DEEPSEEK = [
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
    "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
]


# Parts of a tokenizer.json.

def split(pattern, behavior="Isolated", invert=False):
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior, "invert": invert}


def byte_level(prefix=True, trim=True, regex=True):
    return {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": trim, "use_regex": regex}


def sequence(key, kind, parts):
    return {"type": kind, key: parts}


def begin_with(token, ident):
    piece = lambda t: {"SpecialToken": {"id": token, "type_id": t}}
    text = lambda s, t: {"Sequence": {"id": s, "type_id": t}}
    return {
        "type": "TemplateProcessing",
        "single": [piece(0), text("A", 0)],
        "pair": [piece(0), text("A", 0), piece(1), text("B", 1)],
        "special_tokens": {token: {"id": token, "ids": [ident], "tokens": [token]}},
    }


def spm_decoder(strip):
    parts = [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"}, {"type": "Fuse"},
    ]
    if strip:
        parts.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return sequence("decoders", "Sequence", parts)


def added(ident, content, flags="s"):
    """flags: s special, n normalized, w single word, l lstrip, r rstrip."""
    return {
        "id": ident, "content": content, "single_word": "w" in flags, "lstrip": "l" in flags,
        "rstrip": "r" in flags, "normalized": "n" in flags, "special": "s" in flags,
    }


# Training.

def corpus():
    with open(os.path.join(HERE, "corpus.txt"), encoding="utf-8") as f:
        return f.read()


def train_bytes(normalizer, patterns, size):
    """Byte-level BPE of size tokens: vocabulary and merges."""
    tok = Tokenizer(models.BPE())
    if normalizer:
        tok.normalizer = normalizers.NFC()
    parts = [pre_tokenizers.Split(Regex(p), "isolated") for p in patterns]
    tok.pre_tokenizer = pre_tokenizers.Sequence(parts + [pre_tokenizers.ByteLevel(False, use_regex=False)])
    return learn(tok, size, pre_tokenizers.ByteLevel.alphabet())


def train_chars(size):
    """Character BPE in which words begin with U+2581, as SentencePiece learns it."""
    tok = Tokenizer(models.BPE())
    tok.normalizer = normalizers.Replace(" ", "▁")
    tok.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split("\n", "removed"),
        pre_tokenizers.Split(Regex("▁*[^▁]*"), "isolated"),
    ])
    return learn(tok, size, [])


def learn(tok, size, alphabet):
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=sorted(alphabet), show_progress=False)
    tok.train_from_iterator([corpus()], trainer)
    model = json.loads(tok.to_str())["model"]
    return model["vocab"], [tuple(m) for m in model["merges"]]


def all_splits(vocab):
    """Every way to make each token of two others, by rank: what conversion from ranks yields."""
    merges = []
    for token, rank in sorted(vocab.items(), key=lambda kv: kv[1]):
        ways = [(token[:i], token[i:]) for i in range(1, len(token)) if token[:i] in vocab and token[i:] in vocab]
        merges += sorted(ways, key=lambda w: (vocab[w[0]], vocab[w[1]]))
    return merges


# Words that no merge makes: with ignore_merges they are found whole, without it never.
WHOLE = ["Ġzyzzyva", "QQQQQ", "Ġwhole", "==>", "ĠÐ¯Ñģ", "777", "\u0120\u0120\u0120\u0120\u0120\u0120\u0120x"]


def bpe(vocab, merges, spaced, unk=None, fuse=False, fallback=False, ignore=None, affix=None):
    model = {
        "type": "BPE", "dropout": None, "unk_token": unk, "continuing_subword_prefix": affix,
        "end_of_word_suffix": affix, "fuse_unk": fuse, "byte_fallback": fallback,
    }
    if ignore is not None:
        model["ignore_merges"] = ignore
    model["vocab"] = vocab
    model["merges"] = [" ".join(m) for m in merges] if spaced else [list(m) for m in merges]
    return model


def document(tokens, normalizer, pre, post, decoder, model):
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": tokens, "normalizer": normalizer,
        "pre_tokenizer": pre, "post_processor": post, "decoder": decoder, "model": model,
    }


def numbered(start, names, flags="s"):
    return [added(start + i, n, flags) for i, n in enumerate(names)]


# Families.

CHATML = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>",
          "<|box_start|>", "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>",
          "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>"]
CHATML_PLAIN = ["<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>",
                "<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>", "<think>", "</think>"]


def qwen(pattern, size, more=()):
    vocab, merges = train_bytes("NFC", [pattern], size)
    for w in WHOLE:
        vocab.setdefault(w, len(vocab))
    first = len(vocab)
    tokens = numbered(first, CHATML) + numbered(first + len(CHATML), CHATML_PLAIN, "")
    tokens += numbered(first + len(tokens), more)
    flat = byte_level(False, False, False)
    pre = sequence("pretokenizers", "Sequence", [split(pattern), flat])
    model = bpe(vocab, merges, spaced=False, ignore=False, affix="")
    config = {
        "add_bos_token": False, "add_prefix_space": False,
        "additional_special_tokens": CHATML[1:],
        "bos_token": None, "clean_up_tokenization_spaces": False, "eos_token": "<|im_end|>", "errors": "replace",
        "model_max_length": 131072, "pad_token": "<|endoftext|>", "split_special_tokens": False, "unk_token": None,
    }
    config["added_tokens_decoder"] = decoder_table(tokens)
    generation = {"bos_token_id": first, "eos_token_id": [first + 2, first], "pad_token_id": first}
    return document(tokens, {"type": "NFC"}, pre, flat, flat, model), config, generation


def decoder_table(tokens):
    return {str(t["id"]): {k: v for k, v in t.items() if k != "id"} for t in tokens}


def qwen3():
    return qwen(QWEN2, 2600)


def qwen3_5():
    return qwen(QWEN3_5, 2200, ["<|audio_start|>", "<|audio_end|>", "<tts_pad>", "<|audio_pad|>"])


def ranked(pattern, size):
    vocab, _ = train_bytes(None, [pattern], size)
    merges = all_splits(vocab)
    for w in WHOLE:
        vocab.setdefault(w, len(vocab))
    return vocab, merges


def llama3():
    vocab, merges = ranked(LLAMA3, 2400)
    n = len(vocab)
    known = {0: "begin_of_text", 1: "end_of_text", 4: "finetune_right_pad_id", 6: "start_header_id",
             7: "end_header_id", 8: "eom_id", 9: "eot_id", 10: "python_tag"}
    names, reserved = [], 0
    for i in range(64):
        if i in known:
            names.append(f"<|{known[i]}|>")
        else:
            names.append(f"<|reserved_special_token_{reserved}|>")
            reserved += 1
    pre = sequence("pretokenizers", "Sequence", [split(LLAMA3), byte_level(False, True, False)])
    post = sequence("processors", "Sequence", [byte_level(True, False, True), begin_with(names[0], n)])
    model = bpe(vocab, merges, spaced=True, ignore=True)
    config = {
        "bos_token": names[0], "clean_up_tokenization_spaces": True, "eos_token": "<|eot_id|>",
        "model_input_names": ["input_ids", "attention_mask"], "model_max_length": 131072,
        "added_tokens_decoder": decoder_table(numbered(n, names)),
    }
    generation = {"bos_token_id": n, "eos_token_id": [n + 1, n + 8, n + 9], "temperature": 0.6, "top_p": 0.9}
    return document(numbered(n, names), None, pre, post, byte_level(), model), config, generation


def o200k(behavior, invert, spaced, ignore, affix, size):
    vocab, merges = ranked(O200K, size)
    pre = sequence("pretokenizers", "Sequence", [split(O200K, behavior, invert), byte_level(False, True, False)])
    return vocab, pre, bpe(vocab, merges, spaced=spaced, ignore=ignore, affix=affix)


def gptoss():
    vocab, pre, model = o200k("Isolated", False, False, True, None, 2400)
    n = len(vocab)
    names = {0: "startoftext", 1: "endoftext", 4: "return", 5: "constrain", 7: "channel", 8: "start", 9: "end",
             10: "message", 14: "call", 20: "endofprompt"}
    tokens = [added(n + i, f"<|{names.get(i, f'reserved_{n + i}')}|>") for i in range(21)]
    config = {
        "bos_token": "<|startoftext|>", "clean_up_tokenization_spaces": False, "eos_token": "<|return|>",
        "extra_special_tokens": {}, "model_max_length": 1000000000000000019884624838656,
        "pad_token": "<|endoftext|>", "added_tokens_decoder": decoder_table(tokens),
    }
    generation = {"bos_token_id": n, "eos_token_id": [n + 4, n + 1, n + 14], "pad_token_id": n + 1}
    return document(tokens, None, pre, byte_level(True, False, True), byte_level(), model), config, generation


def gpt4o():
    vocab, pre, model = o200k("Removed", True, True, None, "", 800)
    n = len(vocab)
    tokens = [added(n, "<|endoftext|>"), added(n + 19, "<|endofprompt|>")]
    config = {"add_prefix_space": False, "bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>",
              "unk_token": "<|endoftext|>", "clean_up_tokenization_spaces": False, "model_max_length": 128000}
    return document(tokens, None, pre, None, byte_level(), model), config, None


TEKKEN_CONTROL = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]",
                  "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]",
                  "[PREFIX]", "[MIDDLE]", "[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]"]


def tekken():
    inner, merges = ranked(TEKKEN, 2200)
    names = TEKKEN_CONTROL + [f"<SPECIAL_{i}>" for i in range(len(TEKKEN_CONTROL), 64)]
    vocab = {n: i for i, n in enumerate(names)}
    vocab.update({t: r + len(names) for t, r in inner.items()})
    pre = sequence("pretokenizers", "Sequence", [split(TEKKEN), byte_level(False, True, False)])
    model = bpe(vocab, merges, spaced=False, ignore=True)
    config = {"add_bos_token": True, "add_eos_token": False, "bos_token": "<s>", "eos_token": "</s>",
              "unk_token": "<unk>", "pad_token": "<pad>", "clean_up_tokenization_spaces": False,
              "model_max_length": 131072, "added_tokens_decoder": decoder_table(numbered(0, names))}
    generation = {"bos_token_id": 1, "eos_token_id": 2}
    return document(numbered(0, names), None, pre, begin_with("<s>", 1), byte_level(), model), config, generation


def deepseek_v3():
    inner, merges = train_bytes(None, DEEPSEEK, 2400)
    head = ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>"]
    vocab = {n: i for i, n in enumerate(head)}
    vocab.update({t: r + len(head) for t, r in inner.items()})
    n = len(vocab)
    tokens = numbered(0, head) + numbered(n, [f"<｜place▁holder▁no▁{i}｜>" for i in range(16)])
    n += 16
    fim = ["<｜fim▁hole｜>", "<｜fim▁begin｜>", "<｜fim▁end｜>", "<｜User｜>", "<｜Assistant｜>"]
    tools = ["calls▁begin", "calls▁end", "call▁begin", "call▁end", "outputs▁begin", "outputs▁end", "output▁begin",
             "output▁end", "sep"]
    tokens += numbered(n, fim, "n") + numbered(n + 5, ["<|EOT|>"], "sn")
    tokens += numbered(n + 6, [f"<｜tool▁{t}｜>" for t in tools], "n")
    tokens += numbered(n + 6 + len(tools), ["<think>", "</think>"], "n")
    parts = [split(p) for p in DEEPSEEK] + [byte_level(False, True, False)]
    model = bpe(vocab, merges, spaced=True)
    boxed = lambda s: {"__type": "AddedToken", "content": s, "lstrip": False, "normalized": True, "rstrip": False,
                       "single_word": False}
    config = {"add_bos_token": True, "add_eos_token": False, "bos_token": boxed(head[0]), "eos_token": boxed(head[1]),
              "pad_token": boxed(head[1]), "unk_token": None, "clean_up_tokenization_spaces": False, "legacy": True,
              "model_max_length": 131072, "sp_model_kwargs": {}}
    generation = {"bos_token_id": 0, "eos_token_id": 1}
    doc = document(tokens, sequence("normalizers", "Sequence", []), sequence("pretokenizers", "Sequence", parts),
                   byte_level(True, False, True), byte_level(), model)
    return doc, config, generation


def pieces(head, size, runs):
    """Vocabulary and merges of a SentencePiece-style model: head, bytes, runs, learned pieces."""
    learned, merges = train_chars(size)
    vocab = {}
    for t in head + [f"<0x{b:02X}>" for b in range(256)] + runs:
        vocab.setdefault(t, len(vocab))
    for t in sorted(learned, key=lambda t: (len(t) == 1, learned[t])):
        vocab.setdefault(t, len(vocab))
    return vocab, merges


def run_merges(char, longest):
    """Merges that join runs of char in every way, the longest first."""
    return [(char * a, char * (n - a)) for n in range(longest, 1, -1) for a in range(n - 1, 0, -1)]


TAGS = ["table", "tr", "td", "h1", "strong", "em", "b", "code", "ul", "li", "div"]


def gemma():
    head = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "[multimodal]"] + [f"<unused{i}>" for i in range(12)]
    turns = ["<start_of_turn>", "<end_of_turn>"]
    lines = ["\n" * n for n in range(1, 9)]
    spaces = ["▁" * n for n in range(2, 9)]
    tags = [f"<{t}>" for t in TAGS] + [f"</{t}>" for t in TAGS]
    tabs = ["\t" * n for n in range(1, 9)]
    images = ["<start_of_image>", "<end_of_image>"]
    vocab, merges = pieces(head + turns + lines + spaces + tags, 2600, [])
    for t in tabs + images:
        vocab.setdefault(t, len(vocab))
    merges = run_merges("\n", 8) + run_merges("▁", 8) + run_merges("\t", 8) + merges
    vocab.setdefault("▁", len(vocab))
    special = set(head[:4] + turns + images)
    tokens = [added(vocab[t], t, "s" if t in special else "") for t in head + turns + lines + spaces + tags + tabs + images]
    tokens.append(added(len(vocab), "<image_soft_token>"))
    tokens.sort(key=lambda t: t["id"])
    pre = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
    normalizer = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    model = bpe(vocab, merges, spaced=False, unk="<unk>", fuse=True, fallback=True, ignore=False)
    config = {"add_bos_token": True, "add_eos_token": False, "bos_token": "<bos>", "eos_token": "<eos>",
              "pad_token": "<pad>", "unk_token": "<unk>", "boi_token": "<start_of_image>",
              "clean_up_tokenization_spaces": False, "model_max_length": 1000000000000000019884624838656,
              "spaces_between_special_tokens": False, "added_tokens_decoder": decoder_table(tokens)}
    generation = {"bos_token_id": 2, "eos_token_id": [1, vocab["<end_of_turn>"]], "pad_token_id": 0}
    return document(tokens, normalizer, pre, begin_with("<bos>", 2), spm_decoder(False), model), config, generation


def llama2_parts(size):
    vocab, merges = pieces(["<unk>", "<s>", "</s>"], size, ["▁▁", "▁▁▁▁", "▁▁▁▁▁▁▁▁"])
    merges = [("▁", "▁"), ("▁▁", "▁▁"), ("▁▁▁▁", "▁▁▁▁")] + merges
    normalizer = sequence("normalizers", "Sequence", [
        {"type": "Prepend", "prepend": "▁"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
    ])
    config = {"add_bos_token": True, "add_eos_token": False, "bos_token": "<s>", "eos_token": "</s>",
              "unk_token": "<unk>", "pad_token": None, "clean_up_tokenization_spaces": False, "legacy": True,
              "model_max_length": 4096, "sp_model_kwargs": {}}
    return vocab, merges, normalizer, config


def llama2():
    vocab, merges, normalizer, config = llama2_parts(2400)
    model = bpe(vocab, merges, spaced=True, unk="<unk>", fuse=True, fallback=True)
    tokens = numbered(0, ["<unk>", "<s>", "</s>"])
    generation = {"bos_token_id": 1, "eos_token_id": 2}
    return document(tokens, normalizer, None, begin_with("<s>", 1), spm_decoder(True), model), config, generation


def phi3():
    """Llama-2's model with tokens that swallow the white space after them."""
    vocab, merges, normalizer, config = llama2_parts(1400)
    model = bpe(vocab, merges, spaced=False, unk="<unk>", fuse=True, fallback=True, ignore=False)
    n = len(vocab)
    names = ["<|endoftext|>", "<|assistant|>", "<|placeholder1|>", "<|placeholder2|>", "<|placeholder3|>",
             "<|placeholder4|>", "<|system|>", "<|end|>", "<|placeholder5|>", "<|placeholder6|>", "<|user|>"]
    tokens = [added(0, "<unk>"), added(1, "<s>"), added(2, "</s>", "r")]
    tokens += [added(n + i, t, "s" if i == 0 else "sr") for i, t in enumerate(names)]
    config.update(eos_token="<|endoftext|>", pad_token="<|endoftext|>", add_bos_token=False,
                  added_tokens_decoder=decoder_table(tokens))
    generation = {"bos_token_id": 1, "eos_token_id": [n, n + 1, n + 7], "pad_token_id": n}
    return document(tokens, normalizer, None, begin_with("<s>", 1), spm_decoder(True), model), config, generation


def mistral_v3():
    """Metaspace before the first word instead of Prepend before every gap."""
    vocab, merges, _, config = llama2_parts(1600)
    control = ["[INST]", "[/INST]", "[TOOL_CALLS]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]",
               "[/TOOL_RESULTS]"] + [f"[control_{i}]" for i in range(8, 24)]
    names = ["<unk>", "<s>", "</s>"] + control
    shifted = {t: i for i, t in enumerate(names)}
    for t, _ in sorted(vocab.items(), key=lambda kv: kv[1]):
        shifted.setdefault(t, len(shifted))
    model = bpe(shifted, merges, spaced=False, unk="<unk>", fuse=True, fallback=True, ignore=False)
    pre = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}
    tokens = numbered(0, names)
    config["added_tokens_decoder"] = decoder_table(tokens)
    generation = {"bos_token_id": 1, "eos_token_id": 2}
    return document(tokens, None, pre, begin_with("<s>", 1), spm_decoder(True), model), config, generation


def flags():
    """Added tokens of every kind at once, some of which the normalizer changes."""
    vocab, merges = train_bytes("NFC", [QWEN2], 700)
    n = len(vocab)
    kinds = ["", "s", "n", "sn", "l", "r", "lr", "nl", "nr", "nlr", "w", "nw", "wl", "wr", "wlr", "nwlr"]
    tokens = [added(n + i, f"<{k or 'plain'}>", k) for i, k in enumerate(kinds)]
    extra = [("e\u0301t\u00e9", "n"), ("e\u0301t\u00e9!", ""), ("Stop", "w"), ("stop", "nw"), ("ab", ""), ("abc", ""),
             ("bcd", "n"), ("<sn><sn>", "s"), ("  ", "l"), ("\n\n", "r")]
    tokens += [added(n + len(kinds) + i, t, k) for i, (t, k) in enumerate(extra)]
    flat = byte_level(False, False, False)
    pre = sequence("pretokenizers", "Sequence", [split(QWEN2), flat])
    config = {"bos_token": None, "eos_token": "<s>", "clean_up_tokenization_spaces": False}
    return document(tokens, {"type": "NFC"}, pre, None, flat, bpe(vocab, merges, spaced=True)), config, None


FAMILIES = {f.__name__: f for f in (qwen3, qwen3_5, llama3, llama2, deepseek_v3, gemma, gptoss, gpt4o, tekken,
                                    mistral_v3, phi3, flags)}
# Families with a chat_template.jinja; the others keep it in tokenizer_config.json.
OWN_FILE = {"qwen3_5", "gptoss", "tekken"}


def write(path, value, indent=None):
    separators = (",", ": ") if indent else (",", ":")
    with open(path, "w", encoding="utf-8") as f:
        json.dump(value, f, ensure_ascii=False, indent=indent, separators=separators)
        f.write("\n")


def make(family):
    doc, config, generation = FAMILIES[family]()
    out = os.path.join(HERE, family)
    os.makedirs(out, exist_ok=True)
    template = os.path.join(HERE, "templates", family + ".jinja")
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    if os.path.exists(template):
        with open(template, encoding="utf-8") as f:
            text = f.read()
        if family in OWN_FILE:
            shutil.copyfile(template, os.path.join(out, "chat_template.jinja"))
        elif family == "mistral_v3":
            brief = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
            config["chat_template"] = [{"name": "default", "template": brief}, {"name": "tool_use", "template": text}]
        else:
            config["chat_template"] = text
    write(os.path.join(out, "tokenizer.json"), doc)
    write(os.path.join(out, "tokenizer_config.json"), config, 2)
    if generation:
        write(os.path.join(out, "generation_config.json"), generation, 2)
    tok = Tokenizer.from_file(os.path.join(out, "tokenizer.json"))
    size = os.path.getsize(os.path.join(out, "tokenizer.json"))
    print(f"{family:12} {tok.get_vocab_size():5} tokens {len(doc['model']['merges']):5} merges {size:7} bytes")


if __name__ == "__main__":
    for name in sys.argv[1:] or FAMILIES:
        make(name)
