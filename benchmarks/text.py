"""Text that every machine with Python has, and tokens of it: what the benches of losses train on."""

from __future__ import annotations

import hashlib
import sysconfig
from pathlib import Path
from typing import Any


def sources(length: int) -> str:
    """So many bytes of Python: files of the standard library (30 MB), after them those of the installed packages.

    Files stand in the order of their names' hashes, so that a package more or less changes nothing of what the standard
    library is enough for. Another release of Python has other files: see `digest`.
    """
    paths = sysconfig.get_paths()
    parts, have = [], 0
    for path in (*_files(Path(paths["stdlib"])), *_files(Path(paths["purelib"]))):
        part = path.read_text(encoding="utf-8", errors="replace")
        parts.append(part)
        have += len(part)
        if have >= length:
            break
    return "\n".join(parts)[:length]


def _files(place: Path) -> list[Path]:
    named = {str(path.relative_to(place)): path for path in place.rglob("*.py")}
    own = [name for name in named if not name.startswith(("site-packages/", "dist-packages/"))]
    return [named[name] for name in sorted(own, key=lambda name: hashlib.sha256(name.encode()).digest())]


def digest(text: str) -> str:
    """What names a text in results: losses on two texts do not compare."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def in_pieces(text: str) -> list[str]:
    return [text[at : at + 100_000] for at in range(0, len(text), 100_000)]


def make_tokenizer(folder: Path, pieces: list[str], vocabulary: int) -> Any:
    """A byte-pair encoding of these texts; in ``folder`` as transformers saves one."""
    from tokenizers import ByteLevelBPETokenizer
    from transformers import PreTrainedTokenizerFast

    made = ByteLevelBPETokenizer()
    made.train_from_iterator(pieces, vocabulary, special_tokens=["<end>"], show_progress=False)
    PreTrainedTokenizerFast(tokenizer_object=made._tokenizer, eos_token="<end>").save_pretrained(folder)
    return made
