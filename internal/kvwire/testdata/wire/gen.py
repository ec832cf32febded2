#!/usr/bin/env python3
"""Writes the golden payloads of this directory with msgspec, the encoder of the engines.

    python3 -m venv v && v/bin/pip install msgspec && v/bin/python gen.py

The structs are those of each release: array-like ones write every field, maps leave out
optional fields that have their default. Files are named layout[+variant].hex.
"""
import msgspec

TS, H1, H2 = 1700000000.5, 3236607068019569386, 2758186210834249151
S1, S2 = 8635429971592222890, 1256577331724852459
SIGNED = -484813614762822561  # 0xf945989605c9f45f, which the engine sends signed
T1, T2 = list(range(1, 17)), list(range(17, 33))
DIGEST = bytes.fromhex("202da172482d928bbc42ab25b0151e2b895f13f41002e27b2ceabcfae6d332ea")
IMAGE = "0123456789abcdef" + "0" * 48
SPEC = ["full_attention", None]


def pack(*events, rank=0):
    return msgspec.msgpack.encode([TS, list(events)] + ([] if rank == "none" else [rank]))


def arrays(*extra, removed=(), h=H1, size=16):
    """stored, removed, cleared as arrays, with the fields a release appends."""
    return (["BlockStored", [h], None, T1, size, None, *extra], ["BlockRemoved", [h], *removed], ["AllBlocksCleared"])


class Event(msgspec.Struct, tag=True, omit_defaults=True):
    pass


class BlockStored(Event):
    block_hashes: list
    parent_block_hash: object
    token_ids: list
    block_size: int
    lora_id: object
    medium: object
    lora_name: object
    extra_keys: object = None
    group_idx: object = None
    kv_cache_spec_kind: object = None
    kv_cache_spec_sliding_window: object = None
    locality: object = None


class BlockRemoved(Event):
    block_hashes: list
    medium: object
    group_idx: object = None
    locality: object = None


class AllBlocksCleared(Event):
    pass


class SGLangStored(Event, tag="BlockStored"):
    block_hashes: list
    parent_block_hash: object
    token_ids: list
    block_size: int
    lora_id: object
    medium: object
    cache_salt: object = None


def stored(h=H1, parent=None, tokens=T1, size=16, lora_id=None, medium="GPU", lora_name=None, **kw):
    return BlockStored([h] if not isinstance(h, list) else h, parent, tokens, size, lora_id, medium, lora_name, **kw)


FULL = dict(group_idx=0, kv_cache_spec_kind="full_attention")
pairs = [[t, t + 1] for t in T1]

files = {
    "vllm-0.9.0": pack(*arrays(), rank="none"),
    "vllm-0.9.1": pack(arrays()[0]),
    "vllm-0.10.2": pack(arrays("GPU")[0]),
    "vllm-0.10.2+bytes": pack(*arrays("GPU", removed=["GPU"], h=DIGEST)),
    "vllm-0.14": pack(*arrays("GPU", None, removed=["GPU"])),
    "vllm-0.14+lora": pack(["BlockStored", [H1], None, T1, 16, 3, "GPU", "my-lora"], rank=None),
    "vllm-0.19.1": pack(*arrays("GPU", None, None, removed=["GPU"])),
    "vllm-0.19.1+salt": pack(["BlockStored", [H1, H2], None, T1 + T2, 16, None, "GPU", None, [["salt-A"], None]]),
    "vllm-0.23-group": pack(*arrays("GPU", None, None, 1, removed=["GPU", 1]), rank=2),
    "vllm-0.23": pack(*arrays("GPU", None, None, 0, *SPEC, removed=["GPU", 0])),
    "vllm-0.24": pack(stored(**FULL), BlockRemoved([H1], "GPU", 0), AllBlocksCleared()),
    "vllm-0.24+keys": pack(
        stored([H1, H2], None, T1 + T2, 16, None, "GPU", "my-lora",
               extra_keys=[("my-lora", (IMAGE, 5), "salt-A"), ("my-lora", (IMAGE, -11))], **FULL)),
    "vllm-0.24+tiers": pack(
        stored(**FULL), stored(tokens=[], size=0, medium="CPU"), BlockRemoved([H1], "GPU", 0), BlockRemoved([H1], "CPU")),
    "vllm-0.26": pack(
        stored(H1, medium="STORAGE", locality="REMOTE", group_idx=1, kv_cache_spec_kind="sliding_window",
               kv_cache_spec_sliding_window=1024),
        BlockRemoved([H1], "STORAGE", 1, "REMOTE"), AllBlocksCleared()),
    "sglang-2025": pack(*arrays(h=SIGNED)),
    "sglang": pack(*arrays("GPU", h=SIGNED, removed=["GPU"])[:2]),
    "sglang+bigram": pack(["BlockStored", [S1], None, pairs, 16, None, "GPU"]),
    "sglang-salt": pack(
        ["BlockStored", [S1], None, T1, 16, None, "GPU"],
        ["BlockStored", [S2], S1, T2, 16, None, "GPU", {"cache_salt": "tenant-a"}]),
    "sglang-map": pack(
        SGLangStored([SIGNED], None, T1, 16, None, "GPU", "tenant-a"),
        SGLangStored([S2], S1, T2, 16, None, "CPU_PINNED"),
        BlockRemoved([SIGNED], "GPU"), AllBlocksCleared()),
}
for name, payload in files.items():
    with open(name + ".hex", "w") as f:
        f.write(payload.hex() + "\n")
