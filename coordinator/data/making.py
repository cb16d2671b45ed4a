"""Which of the readers makes the tokens of a job's data."""

from __future__ import annotations

from collections.abc import Callable

from ...job.tables.data import Data
from .chat.chat import tokenise_chat
from .data import TokenFile, tokenise
from .labelled import tokenise_labelled

Make = Callable[..., TokenFile]
"""``make(job, tokenizer, context, folder, tell, room)``."""


def maker_of(data: Data) -> Make:
    """What reads these data: text, conversations, or texts with their classes."""
    if data.labelled:
        return tokenise_labelled
    return tokenise_chat if data.chat else tokenise
