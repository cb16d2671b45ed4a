"""Selects the function that makes the tokens of a job's data."""

from __future__ import annotations

from collections.abc import Callable

from ...job.tables.data import Data
from .chat.chat import tokenise_chat
from .data import TokenFile, tokenise
from .rows.labelled import tokenise_labelled
from .rows.preferences import tokenise_preferences

Make = Callable[..., TokenFile]
"""``make(job, tokenizer, context, folder, tell, room)``."""


def maker_of(data: Data) -> Make:
    """The function for these data: text, conversations, texts with their classes, or pairs of answers."""
    if data.labelled:
        return tokenise_labelled
    if data.preferences:
        return tokenise_preferences
    return tokenise_chat if data.chat else tokenise
