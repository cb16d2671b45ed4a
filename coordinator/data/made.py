"""Tokens that an earlier start finished and never trained on: it was stopped, or refused the job, before it knew all.

FOLDER/made.json says what they were made of. They are used again where every file, the tokenizer and the job's words
are as they were, and the file of tokens has the digest that it had.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...proto.process.files import file_digest
from ...proto.process.progress import Tell
from .corpus import kept
from .data import TokenFile
from .files.sources import Source


class Made:
    """What a start makes, or an earlier one made, in ``folder`` of these files; ``about``: whatever else decides it,
    under names that people know. Methods raise OSError."""

    def __init__(self, folder: Path, about: dict[str, str], sources: Sequence[Source], tell: Tell) -> None:
        self._path, self._about, self._sources, self._hear = folder / "made.json", about, tuple(sources), tell
        self._said: list[dict[str, Any]] = []

    def tell(self, event: dict[str, Any]) -> None:
        """Pass on an event; what it says of the texts is kept with the tokens."""
        if event["event"] != "progress" and event.get("message", "").startswith("data."):
            self._said.append(event)
        self._hear(event)

    def found(self) -> TokenFile | None:
        """An earlier start's tokens, where they still hold; says so, and what it said of them."""
        stored = kept.load(self._path)
        if stored is None:
            return None
        before = [Source(*one) for one in stored["sources"]]
        same = kept.first_other(before, self._sources)
        known = {**stored["tokens"], "mix": tuple(map(tuple, stored["tokens"].get("mix", ())))}
        known["sets"] = tuple(known.get("sets", ()))
        tokens = TokenFile(**{**known, "path": self._path.parent / known["path"]})
        if stored["about"] != self._about:
            names = [name for name in self._about if stored["about"].get(name) != self._about[name]]
            self._say(f"another {', '.join(names)} than at an earlier start: the files are read again")
        elif same < max(len(before), len(self._sources)):
            other = (before + list(self._sources)[len(before) :])[same]
            self._say(f"{other.name} is not surely as an earlier start read it: the files are read again")
        elif not tokens.path.is_file() or file_digest(tokens.path) != stored["file"]:
            self._say("the tokens that an earlier start made are gone or damaged: the files are read again")
        else:
            self._say("the tokens that an earlier start made are used: no file was changed since")
            for event in stored["said"]:
                self._hear({**event, "time": time.time()})
            return tokens
        return None

    def keep(self, tokens: TokenFile) -> None:
        """Remember what was made."""
        content = {
            "version": kept.VERSION,
            "about": self._about,
            "sources": self._sources,
            "tokens": {**vars(tokens), "path": tokens.path.name},
            "file": tokens.digest if tokens.path.name == tokens.digest else file_digest(tokens.path),
            "said": self._said,
        }
        kept.save(self._path, content)

    def _say(self, message: str) -> None:
        self._hear({"event": "notice", "time": time.time(), "message": f"training data: {message}"})
