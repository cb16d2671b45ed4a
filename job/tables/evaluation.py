"""The tables ``[eval]`` and ``[[eval.sets]]``."""

from __future__ import annotations

import shlex
from typing import Annotated, Any

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from .data import LABELLED, PREFERENCES, SOURCES, Data
from .kinds import Files, Table


def _words(value: Any) -> Any:
    """The words of a command, as a shell takes it apart."""
    try:
        return shlex.split(value) if isinstance(value, str) else value
    except ValueError as error:
        raise PydanticCustomError("choice", "{problem}", {"problem": f"{value!r} is no command: {error}"}) from None


class EvalSet(Table):
    """``[[eval.sets]]``: data that are evaluated on and never trained on, under a name; exactly one of ``text``,
    ``jsonl``, ``parquet``, ``webdataset``, ``tokens``, ``chat``, ``labelled`` and
    ``preferences``."""

    name: str = Field(pattern=r"^\w[\w.-]{0,39}$", description="letters, digits, '.', '_' and '-', at most 40")
    text: Files | None = Field(default=None, description='file names or patterns, ["wiki/*.txt"]')
    jsonl: Files | None = Field(default=None, description='file names or patterns, ["wiki/*.jsonl"]')
    parquet: Files | None = Field(default=None, description='file names or patterns, ["wiki/*.parquet"]')
    webdataset: Files | None = Field(default=None, description='shards with *.txt or *.json in them, ["wiki/*.tar"]')
    tokens: Files | None = Field(default=None, description='files of tokens, ["*.bin"]')
    chat: Files | None = Field(default=None, description='rows of messages: jsonl or parquet, ["chats/*.jsonl"]')
    labelled: Files | None = Field(default=None, description=LABELLED)
    preferences: Files | None = Field(default=None, description=PREFERENCES)
    field: str = Field(default="text", min_length=1, description="the jsonl key or parquet column that holds the text")

    def sources(self) -> dict[str, list[str]]:
        """The keys that name files, and their patterns."""
        return {name: getattr(self, name) for name in SOURCES if getattr(self, name) is not None}


class Eval(Table):
    """``[eval]``: what is evaluated every ``train.eval_every`` steps beside what ``data.validation`` holds out."""

    sets: Annotated[list[EvalSet], Field(max_length=64)] = Field(
        default=[], description="tables [[eval.sets]], each with a name and one of the sources of [data]"
    )
    patience: int = Field(
        default=0, ge=0, description="a whole number of evaluations without a lower loss that end the run; 0: never"
    )
    command: Annotated[list[str], BeforeValidator(_words), Field(min_length=1)] | None = Field(
        default=None, description='a program that looks at checkpoints, in words or as a list, "lm_eval ... {model}"'
    )
    command_every: int = Field(
        default=0, ge=0, description="a whole number of steps, a multiple of checkpoint.every; 0: only the last"
    )

    def parts(self, data: Data) -> list[Data]:
        """The sets as data of their own, read as ``data`` is."""
        none = {**dict.fromkeys(SOURCES), "mix": None, "validation": 0.0}
        return [data.model_copy(update={**none, **one.sources(), "field": one.field}) for one in self.sets]
