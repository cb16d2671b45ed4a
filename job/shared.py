"""The job in the form for nodes: all keys that they need, without its owner's secrets.

Nodes never open the addresses of the data or of the checkpoints; the coordinator does. So the parts of an address that
may be a password (before the @, or after the ?) are not sent, nor are ``checkpoint.options``.
"""

from __future__ import annotations

import re
from typing import Any

from .schema import Job
from .tables.data import Data, Mixed
from .tables.evaluation import EvalSet

_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://)(?:.*@)?([^?#]*)", re.DOTALL)

_LINK_OF_A_CHAIN = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*(?:://|$)")

_IN_TEXT = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s'\"]+")


def for_nodes(job: Job) -> Job:
    """The job without user names, passwords, queries and fragments of addresses. A job without these is returned
    itself."""
    data: dict[str, Any] = _told_sources(job.data)
    if job.data.mix:
        data["mix"] = [one.model_copy(update=_told_sources(one)) for one in job.data.mix]
    if held_out := job.data.held_out():
        data["validation"] = [without_secrets(one) for one in held_out]
    return job.model_copy(
        update={
            "data": job.data.model_copy(update={**data, "tokenizer": without_secrets(job.data.tokenizer)}),
            "eval": job.eval.model_copy(
                update={"sets": [one.model_copy(update=_told_sources(one)) for one in job.eval.sets], "command": None}
            ),
            "model": job.model.model_copy(
                update={"pretrained": job.model.pretrained and without_secrets(job.model.pretrained)}
            ),
            "checkpoint": job.checkpoint.model_copy(
                update={"to": without_secrets(job.checkpoint.to), "options": {}},
            ),
        }
    )


def _told_sources(of: Data | Mixed | EvalSet) -> dict[str, list[str]]:
    return {name: [without_secrets(one) for one in patterns] for name, patterns in of.sources().items()}


def told(text: str) -> str:
    """A sentence without the secrets of its addresses."""
    return _IN_TEXT.sub(lambda found: without_secrets(found[0]), text)


def without_secrets(address: str) -> str:
    """An address without its secrets: ``s3://KEY:SECRET@bucket/a?token=x`` becomes ``s3://bucket/a``. Works for chained
    addresses (``simplecache::s3://...``) too; other text is returned unchanged."""
    if "://" not in address:
        return address
    parts: list[str] = []
    for part in re.split(r"::(?=[A-Za-z][A-Za-z0-9+.-]*(?:://|::|$))", address):
        while parts and not _LINK_OF_A_CHAIN.match(part):  # neither address nor protocol: it is password
            part = f"{parts.pop()}::{part}"
        parts.append(part)
    found = [(part, _ADDRESS.match(part)) for part in parts]
    return "::".join(one[1] + one[2] if one else part for part, one in found)
