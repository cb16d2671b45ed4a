"""The tables ``[data]`` and ``[[data.mix]]``."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from .kinds import Code, Count, Files, Table, choice

SOURCES = ("text", "jsonl", "parquet", "webdataset", "tokens", "chat", "labelled", "preferences")
"""Keys of ``[data]`` that name files; a job has exactly one of them."""


PREFERENCES = 'rows of prompt, chosen and rejected: jsonl or parquet, ["pairs/*.jsonl"]'
LABELLED = 'rows of a text and its class: jsonl, csv, tsv or parquet, ["reviews/*.csv"]'


class Mixed(Table):
    """``[[data.mix]]``: one source of a mixture, and how much of the samples come from it."""

    weight: Annotated[float, Field(strict=False, gt=0, allow_inf_nan=False)] = Field(
        description="a number above 0: sources are drawn in proportion to their weights"
    )
    text: Files | None = Field(default=None, description='file names or patterns, ["data/*.txt"]')
    jsonl: Files | None = Field(default=None, description='file names or patterns, ["data/*.jsonl"]')
    parquet: Files | None = Field(default=None, description='file names or patterns, ["data/*.parquet"]')
    webdataset: Files | None = Field(default=None, description='shards with *.txt or *.json in them, ["shards/*.tar"]')
    tokens: Files | None = Field(default=None, description='files of tokens, ["*.bin"]')
    chat: Files | None = Field(default=None, description='rows of messages: jsonl or parquet, ["chats/*.jsonl"]')
    labelled: Files | None = Field(default=None, description=LABELLED)
    preferences: Files | None = Field(default=None, description=PREFERENCES)
    field: str = Field(default="text", min_length=1, description="the jsonl key or parquet column that holds the text")

    def sources(self) -> dict[str, list[str]]:
        """The keys that name files, and their patterns."""
        return {name: getattr(self, name) for name in SOURCES if getattr(self, name) is not None}


class Data(Table):
    """``[data]``: exactly one of ``text``, ``jsonl``, ``parquet``, ``webdataset``, ``tokens``, ``chat``, ``labelled``,
    ``preferences``, ``build`` and ``samples``."""

    text: Files | None = Field(default=None, description='file names or patterns, ["data/*.txt"]')
    jsonl: Files | None = Field(default=None, description='file names or patterns, ["data/*.jsonl"]')
    parquet: Files | None = Field(default=None, description='file names or patterns, ["data/*.parquet"]')
    webdataset: Files | None = Field(default=None, description='shards with *.txt or *.json in them, ["shards/*.tar"]')
    tokens: Files | None = Field(default=None, description='uint16 tokens of the tokenizer, as nanoGPT has, ["*.bin"]')
    chat: Files | None = Field(
        default=None, description='rows of messages, or of prompt and completion: jsonl or parquet, ["chats/*.jsonl"]'
    )
    labelled: Files | None = Field(default=None, description=LABELLED)
    preferences: Files | None = Field(default=None, description=PREFERENCES)
    mix: Annotated[list[Mixed], Field(min_length=1)] | None = Field(
        default=None, description="tables [[data.mix]], each with a weight and one of the sources above"
    )
    turns: Annotated[Literal["all", "last", "each"], choice("all", "last", "each")] = Field(
        default="all",
        description="which turns of the assistant are learnt (chat): all, the last, or each as the end of a sample",
    )
    pack: bool = Field(
        default=True, description="true or false: several conversations in a sample, none of which sees another (chat)"
    )
    field: str = Field(default="text", min_length=1, description="the jsonl key or parquet column that holds the text")
    pair: str | None = Field(
        default=None, min_length=1, description="the key or column of a second text, as of a question (labelled)"
    )
    label: str = Field(default="label", min_length=1, description="the key or column of the class (labelled)")
    classes: Annotated[list[str], Field(min_length=2)] | None = Field(
        default=None, description='names of the classes, of 0 first, ["no", "yes"] (default: what config.json says)'
    )
    token_type: Annotated[Literal["auto", "uint16", "uint32"], choice("auto", "uint16", "uint32")] = Field(
        default="auto",
        description="what tokens are in files that do not say it: auto (uint32 for more than 65,536), uint16, uint32",
    )
    build: Code | None = Field(default=None, description='"package.module:function"')
    samples: Count | None = Field(default=None, description="how many training samples members of a group have")
    tokenizer: str = Field(default="bytes", min_length=1, description='"bytes", or a folder that AutoTokenizer loads')
    validation: Annotated[float, Field(ge=0, lt=1)] | Files = Field(
        default=0.05, description="the part held out, a number from 0 to less than 1; or files of the same kind"
    )
    cache_gb: float = Field(
        default=50.0,
        gt=0,
        allow_inf_nan=False,
        description="gigabytes of tokens that a node, or the coordinator, keeps on its disk at most",
    )
    where: Annotated[Literal["coordinator", "node"], choice("coordinator", "node")] = Field(
        default="coordinator",
        description='"coordinator", or "node": files below the folder that each node joined with (--data)',
    )

    def sources(self) -> dict[str, list[str]]:
        """The keys that name files, and their patterns."""
        given = {name: getattr(self, name) for name in SOURCES}
        return {name: patterns for name, patterns in given.items() if patterns is not None}

    def raw_kind(self, vocabulary: int) -> str:
        """The numpy dtype of tokens in files without a header."""
        if self.token_type == "auto":
            return "<u4" if vocabulary > 2**16 else "<u2"
        return "<u4" if self.token_type == "uint32" else "<u2"

    def parts(self) -> list[Data]:
        """The sources of a mixture, each as data of its own."""
        given = [{name: getattr(one, name) for name in SOURCES} | {"field": one.field} for one in self.mix or ()]
        return [self.model_copy(update={"mix": None, **one}) for one in given]

    def held_out(self) -> list[str]:
        """The patterns of ``validation``; none where it is a part of the training files."""
        return self.validation if isinstance(self.validation, list) else []

    @property
    def is_text(self) -> bool:
        """Whether samples are windows of tokens, which the coordinator makes."""
        return self.build is None and self.samples is None

    def source(self) -> tuple[str, list[str]]:
        """The one key that names files, and its patterns (where the data are text)."""
        ((name, patterns),) = self.sources().items()
        return name, patterns
