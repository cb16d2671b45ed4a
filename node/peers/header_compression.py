"""Shortens message headers: fields that both ends of a stream already know are left out.

Run and session are in the stream's greeting. The names of sections come from a handful of values: the first time one is
sent, both ends note it, and from then on it is `#` and its number in that list. A list belongs to one direction of one
stream, so it starts empty after a reconnect.
"""

from __future__ import annotations

from ...proto.data_pb2 import Header
from ...proto.messages import bodies

MARK = "#"
LIMIT = 256
"""Names noted in one list; later ones travel whole."""
SHORTEST = 4
"""Names below this many characters are not worth a number."""


class Shortener:
    """The sender's end of one stream."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def shorten(self, header: Header) -> bytes:
        """The header's bytes without what the receiver knows. ValueError for a section that begins with the mark."""
        short = Header()
        short.CopyFrom(header)
        short.ClearField("run")
        short.ClearField("session")
        body = bodies.sectioned(short)
        if body is not None:
            name = body.section
            if name.startswith(MARK):
                raise ValueError(f"section {name!r} begins with {MARK!r}")
            number = self._numbers.get(name)
            if number is not None:
                body.section = f"{MARK}{number:x}"
            elif len(name) >= SHORTEST and len(self._numbers) < LIMIT:
                self._numbers[name] = len(self._numbers)
        return short.SerializeToString()


class Expander:
    """The receiver's end of one stream; run and session are those of the stream's greeting."""

    def __init__(self, run: str, session: str) -> None:
        self._run = run
        self._session = session
        self._names: list[str] = []

    def expand(self, data: bytes) -> Header:
        """The whole header. ValueError for bytes that are no header (`bodies.read`), or a number that was never given
        out."""
        header = bodies.read(data)
        body = bodies.sectioned(header)
        if body is not None:
            name = body.section
            if name.startswith(MARK):
                body.section = self._known(name)
            elif len(name) >= SHORTEST and len(self._names) < LIMIT and name not in self._names:
                self._names.append(name)
        header.run, header.session = self._run, self._session
        return header

    def _known(self, name: str) -> str:
        try:
            return self._names[int(name[len(MARK) :], 16)]
        except (ValueError, IndexError):
            raise ValueError(f"section {name!r} stands for nothing") from None
