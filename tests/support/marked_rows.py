"""Marked rows for tests: documents of random tokens, of which some train, packed or padded."""

from __future__ import annotations

import hashlib

import numpy as np

from farflung.job.data.facts import Facts
from farflung.job.data.marks import FIRST, MARKED, marked, trained_in
from farflung.node.data.dataset import Tokens


def documents(seed: int, count: int, longest: int, vocabulary: int) -> list[np.ndarray]:
    """Documents of 2 to ``longest`` tokens, whose later tokens train: their number differs much."""
    draw = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        length = int(draw.integers(2, longest + 1))
        tokens = (draw.integers(vocabulary) + draw.integers(1, 4) * np.arange(length)) % vocabulary
        trains = np.arange(length) >= draw.integers(1, length)
        found.append(marked(tokens, trains))
    return found


def rows_of(found: list[np.ndarray], length: int, packed: bool) -> np.ndarray:
    """Rows of ``length`` tokens: as many documents as fit one after the other, or one each."""
    rows: list[list[np.ndarray]] = []
    for document in found:
        if not packed or not rows or sum(map(len, rows[-1])) + len(document) > length:
            rows.append([])
        rows[-1].append(document)
    padded = np.zeros((len(rows), length), np.uint32)
    for row, parts in zip(padded, rows, strict=True):
        whole = np.concatenate(parts)
        row[: len(whole)] = whole
        if len(whole) < length:
            row[len(whole)] |= FIRST
    return padded


def tokens_of(facts: Facts, rows: np.ndarray, packed: bool) -> tuple[Facts, Tokens]:
    """These rows as a node has them: the first ``facts.samples`` train."""
    counts = trained_in(rows)
    raw = {"data/tokens": rows.astype("<u4").tobytes(), "data/counts": counts.astype("<u4").tobytes()}
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in raw.items()}
    facts = facts.model_copy(
        update={
            "token_dtype": MARKED,
            "packed": packed,
            "tokens_digest": digests["data/tokens"],
            "artifacts": digests,
            "trained": int(counts[: facts.samples].sum()),
        }
    )

    def fetch(name: str, offset: int = 0, length: int | None = None) -> bytes:
        return raw[name][offset : None if length is None else offset + length]

    return facts, Tokens(facts, fetch)
