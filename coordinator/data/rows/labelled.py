"""Converts texts with classes to the rows of job/data/labelled.py, one sample for each text."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ....job.data.labelled import class_names, class_number, labelled
from ....job.data.tokenizer import Tokenizer
from ....job.model_folder.config import pretrained_config
from ....job.schema import Job
from ....proto.errors import JobError
from ....proto.process.progress import Tell
from ..data import TokenFile
from ..files.records import whole_text
from ..files.sources import compression_of, opened
from ..files.tables import rows_of
from .samples import write_samples

_ONCE = 256  # rows tokenised at once


class Reader:
    """Converts rows of files to samples, and counts the samples of each class and the truncated texts."""

    def __init__(self, job: Job, tokenizer: Tokenizer, context: int) -> None:
        data = job.data
        self._field, self._pair, self._label = data.field, data.pair, data.label
        self._tokenizer, self._context = tokenizer, context
        config = pretrained_config(job.model.pretrained) if job.model.pretrained else {}
        self.names = class_names(config, data.classes)
        self.counted: Counter[int] = Counter()
        self.cut = 0

    def samples(self, names: Sequence[str]) -> Iterator[npt.NDArray[np.uint32]]:
        """Rows uint32 [context + 1], in the files' order. JobError: a row without text or with another class."""
        rows = (self._row(where, row) for name in names for where, row in _rows(name))
        while some := list(islice(rows, _ONCE)):
            found = self._tokenizer.classified([(first, second) for first, second, _ in some], self._context)
            for (tokens, types, cut), (_, _, label) in zip(found, some, strict=True):
                self.counted[label] += 1
                self.cut += cut
                yield labelled(tokens, types, label, self._context, self._tokenizer.padding)

    def _row(self, where: str, row: Any) -> tuple[str, str | None, int]:
        if not isinstance(row, Mapping):
            raise JobError(f"{where}: no JSON object, but {type(row).__name__}", FORMS)
        texts = []
        for key in (self._field, self._pair):
            if key is None:
                continue
            if not isinstance(row.get(key), str):
                raise JobError(f"{where}: no text under {key!r}; it has: {', '.join(map(str, row))}", FORMS)
            texts.append(whole_text(row[key]))
        value = row.get(self._label)
        label = class_number(value, self.names)
        if label is None:
            what = "no class" if value is None else f"the class {value!r:.60}, which is none of {_listed(self.names)}"
            have = f"; it has: {', '.join(map(str, row))}" if value is None else ""
            raise JobError(f"{where} has {what} under {self._label!r}{have}", _CLASSES)
        return texts[0], texts[1] if len(texts) > 1 else None, label

    def report(self, tell: Tell) -> None:
        """Tell how many samples each class has, and how many texts were truncated."""

        def say(message: str) -> None:
            tell({"event": "notice", "time": time.time(), "message": f"data.labelled: {message}"})

        each = ", ".join(f"{name} {self.counted[number]:,}" for number, name in enumerate(self.names))
        say(f"{self.counted.total():,} samples: {each}"[:500])
        if self.cut:
            say(f"{self.cut:,} texts are longer than model.context = {self._context}: the rest is cut off")


FORMS = 'rows need a text (data.field, data.pair) and a class (data.label); write field = "...", label = "..."'
_CLASSES = 'write label = "KEY" and classes = ["NAME OF 0", "NAME OF 1"] under [data], or leave such rows out'


def labelled_about(job: Job) -> dict[str, str]:
    """The inputs other than the files that decide the rows, for `Made`."""
    config = pretrained_config(job.model.pretrained) if job.model.pretrained else {}
    return {
        "data.label": f"{job.data.pair} {job.data.label}",
        "data.classes": " ".join(class_names(config, job.data.classes)),
    }


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(f"{number} ({name})" for number, name in enumerate(names[:12]))
    return shown + (", ..." if len(names) > 12 else "")


def _rows(name: str) -> Iterator[tuple[str, Any]]:
    with opened(name, compression_of(name)) as file:
        yield from rows_of(name, file, "labelled", FORMS)


def tokenise_labelled(
    job: Job, tokenizer: Tokenizer, context: int, folder: Path, tell: Tell, room: int = sys.maxsize
) -> TokenFile:
    """Read the job's texts, write FOLDER/<sha256> of their rows and FOLDER/<sha256>.counts. JobError: a row of another
    form, or more than ``room`` bytes of rows."""
    reader = Reader(job, tokenizer, context)
    made = write_samples(job, reader.samples, context, folder, tell, room)
    reader.report(tell)
    return made
