"""Tokens that an earlier start finished before it was stopped, or refused the job, so that no run trained on them.

FOLDER/made.json records the inputs. The tokens are used again where every file, the tokenizer and the job's keys are
unchanged, and the file of tokens still has its digest.
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
    """The tokens that a start makes in ``folder`` from these files. ``about``: the other inputs, name for messages ->
    value. Methods raise OSError."""

    def __init__(self, folder: Path, about: dict[str, str], sources: Sequence[Source], tell: Tell) -> None:
        self._path, self._about, self._sources, self._hear = folder / "made.json", about, tuple(sources), tell
        self._said: list[dict[str, Any]] = []

    def tell(self, event: dict[str, Any]) -> None:
        """Pass on an event. Messages about the texts are kept with the tokens, so that a later start repeats them."""
        if event["event"] != "progress" and event.get("message", "").startswith("data."):
            self._said.append(event)
        self._hear(event)

    def found(self) -> TokenFile | None:
        """The tokens of an earlier start, if they are still valid, with a message and that start's messages about them;
        else None."""
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
        """Record the tokens for a later start."""
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
