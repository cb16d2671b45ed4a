"""``farflung doctor``: what would stop this machine from joining, without joining.

Each check answers in one line: fine, or what to type next. A check never raises; if it can't find something out, its
answer says so.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...proto.errors import FarflungError
from ...proto.words.link import parse_link
from .findings import Finding
from .machine import device_of, disk, files, memory, network
from .of_a_run import coordinator


def examine(link: str | None, device: str = "auto") -> Iterator[Finding]:
    """Run the checks one after the other; those of the coordinator only with a link."""
    yield disk()
    yield files()
    yield memory()
    yield device_of(device)
    yield network()
    if link is None:
        return
    try:
        address = parse_link(link)
    except FarflungError as error:
        yield Finding("link", False, error.message, error.hint)
        return
    yield from coordinator(address)
