"""Shortens message headers: fields that both ends of a stream already know are left out.

Run and session are in the stream's greeting. There are only a few names of sections: when one is first sent, both ends
append it to a list, and later headers have `#` and its index in the list instead. A list belongs to one direction of
one stream, so it is empty after a reconnect.
"""

from __future__ import annotations

from ...proto.data_pb2 import Header
from ...proto.messages import bodies

MARK = "#"
LIMIT = 256
"""The most names in one list; further names are always sent whole."""
SHORTEST = 4
"""Names with fewer characters are always sent whole."""


class Shortener:
    """The sender's end of one stream."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def shorten(self, header: Header) -> bytes:
        """The header's bytes without the fields that the receiver knows. ValueError for a section whose name begins
        with `#`."""
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
        """The whole header. ValueError for bytes that are no header (`bodies.read`), or an index that is not in the
        list."""
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
