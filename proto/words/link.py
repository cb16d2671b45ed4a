"""The one pasteable word that a node joins with: ``farflung://HOST:PORT/#TICKET``.

TICKET is base64url (no padding) of 61 bytes: version 1 (1), run id (8), ticket id (4), secret (16) and the
sha256 of the coordinator's certificate in DER (32). A fingerprint of zeros means that the run has no TLS
(``--insecure``). The ticket is in the URL's fragment, which programs that open a URL do not send.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from urllib.parse import urlsplit

from ..errors import FarflungError

SHAPE = "farflung://HOST:PORT/#TICKET, the word that `farflung coordinator start` prints"
_VERSION = 1
_RUN, _TICKET, _SECRET, _FINGERPRINT = 8, 4, 16, 32
NO_FINGERPRINT = bytes(_FINGERPRINT)


@dataclass(frozen=True)
class Link:
    """Where the coordinator is and what proves both sides to each other.

    ``run``: 16 hex digits. ``ticket``: ``"ID.SECRET"``, 8 and 32 hex digits, as JoinRequest.ticket wants it.
    ``fingerprint``: 32 bytes, sha256 of the DER of the coordinator's certificate.
    """

    host: str
    port: int
    run: str
    ticket: str
    fingerprint: bytes = NO_FINGERPRINT

    @property
    def insecure(self) -> bool:
        """Whether the run has no TLS."""
        return self.fingerprint == NO_FINGERPRINT

    @property
    def address(self) -> str:
        """HOST:PORT, with brackets around an IPv6 address."""
        return join_address(self.host, self.port)

    def __str__(self) -> str:
        number, secret = self.ticket.split(".")
        packed = bytes([_VERSION]) + bytes.fromhex(self.run + number + secret) + self.fingerprint
        return f"farflung://{self.address}/#{base64.urlsafe_b64encode(packed).rstrip(b'=').decode()}"


def parse_link(text: str) -> Link:
    """Read a link; FarflungError says what is wrong with it and what a link looks like."""
    text = text.strip().strip("'\"")
    try:
        parts = urlsplit(text)
    except ValueError as error:  # a lonely bracket
        raise _wrong(text, str(error)) from None
    if parts.scheme != "farflung":
        raise _wrong(text, "it does not begin with farflung://")
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        raise _wrong(text, "its port is not a number between 1 and 65535") from None
    if not host or not port:
        raise _wrong(text, "it has no HOST:PORT")
    if not parts.fragment:
        raise _wrong(text, "the ticket after /# is missing (in a shell, quote the link)")
    try:
        packed = base64.b64decode(parts.fragment + "=" * (-len(parts.fragment) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise _wrong(text, "its ticket has characters that no ticket has") from None
    if len(packed) != 1 + _RUN + _TICKET + _SECRET + _FINGERPRINT:
        raise _wrong(text, "its ticket is cut short or too long; copy the whole word")
    if packed[0] != _VERSION:
        raise _wrong(text, f"its ticket has version {packed[0]}, this farflung reads {_VERSION}")
    run, rest = packed[1 : 1 + _RUN].hex(), packed[1 + _RUN :]
    ticket = f"{rest[:_TICKET].hex()}.{rest[_TICKET : _TICKET + _SECRET].hex()}"
    return Link(host, port, run, ticket, rest[_TICKET + _SECRET :])


def split_address(text: str, what: str = "address") -> tuple[str, int]:
    """HOST:PORT as (host, port); port 0 is allowed. FarflungError when it is not one."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65535 or not host or not host.isprintable():
        raise FarflungError(f"{what} {text!r} is not HOST:PORT", "write it like 0.0.0.0:7070 or [::1]:7070")
    return host.strip("[]"), int(port)


def join_address(host: str, port: int) -> str:
    """(host, port) as HOST:PORT."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _wrong(text: str, why: str) -> FarflungError:
    shown = text.split("#")[0][:60]
    return FarflungError(f"{shown!r} is not a link: {why}", f"a link looks like {SHAPE}")
