"""The "bytes" tokenizer as files that `transformers.AutoTokenizer` loads: 256 tokens, the id of a byte is its value."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def byte_letters() -> list[str]:
    """The printable letter that stands for each byte in a byte-level vocabulary (Radford et al. 2019's table).

    Bytes that print stand for themselves, the others for the letters from U+0100 on, in order.
    """
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    letters, others = [], 0
    for byte in range(256):
        if byte in printable:
            letters.append(chr(byte))
        else:
            letters.append(chr(256 + others))
            others += 1
    return letters


def byte_tokenizer() -> dict[str, Any]:
    """The content of tokenizer.json: byte pairs without merges, so that every byte stays a token."""
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": level,
        "post_processor": None,
        "decoder": level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {letter: byte for byte, letter in enumerate(byte_letters())},
            "merges": [],
        },
    }


def write_byte_tokenizer(folder: Path, context: int) -> None:
    """Writes tokenizer.json and tokenizer_config.json; ``context`` is the model's longest input in tokens."""
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": context,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer.json").write_text(json.dumps(byte_tokenizer(), ensure_ascii=False, indent=1), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2), encoding="utf-8")
