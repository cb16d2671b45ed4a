"""Leaves out of every message between two nodes what the stream already knows.

Run and session are in the stream's greeting. The texts `section`, `codec` and `dtype` come from a handful of values:
the first time one is sent, both ends note it, and from then on it is `#` and its number in that list. A list
belongs to one direction of one stream, so it starts empty after a reconnect.
"""

from __future__ import annotations

from ...proto.data_pb2 import Header

FIELDS = ("section", "codec", "dtype")
MARK = "#"
LIMIT = 256
"""Texts noted in one list; later ones travel whole."""
SHORTEST = 4
"""Texts below this many characters are not worth a number."""


class Shortener:
    """The sender's end of one stream."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def shorten(self, header: Header) -> bytes:
        """The header's bytes without what the receiver knows. ValueError for a text that begins with the mark."""
        short = Header()
        short.CopyFrom(header)
        short.ClearField("run")
        short.ClearField("session")
        for field in FIELDS:
            text = getattr(header, field)
            if text.startswith(MARK):
                raise ValueError(f"{field} {text!r} begins with {MARK!r}")
            number = self._numbers.get(text)
            if number is not None:
                setattr(short, field, f"{MARK}{number:x}")
            elif len(text) >= SHORTEST and len(self._numbers) < LIMIT:
                self._numbers[text] = len(self._numbers)
        return short.SerializeToString()


class Expander:
    """The receiver's end of one stream; run and session are those of the stream's greeting."""

    def __init__(self, run: str, session: str) -> None:
        self._run = run
        self._session = session
        self._texts: list[str] = []

    def expand(self, data: bytes) -> Header:
        """The whole header. ValueError for bytes that are no header, or a number that was never given out."""
        header = Header()
        try:
            header.ParseFromString(data)
        except Exception as error:  # protobuf's DecodeError has a different home in each version
            raise ValueError(f"header of {len(data)} bytes is not a Header: {error}") from error
        for field in FIELDS:
            text = getattr(header, field)
            if text.startswith(MARK):
                setattr(header, field, self._known(text))
            elif len(text) >= SHORTEST and len(self._texts) < LIMIT and text not in self._texts:
                self._texts.append(text)
        header.run, header.session = self._run, self._session
        return header

    def _known(self, text: str) -> str:
        try:
            return self._texts[int(text[len(MARK) :], 16)]
        except (ValueError, IndexError):
            raise ValueError(f"text {text!r} stands for nothing") from None
