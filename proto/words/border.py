"""Checks strings from another machine, before they become a path, an address or a line on a terminal.

Each function returns a valid value, or raises `Hostile`. Only `below` makes a path from a string of another machine.
"""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import FarflungError, Refused
from . import names
from .link import split_address

WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}\Z")
"""Names that farflung itself makes: sections of a model, sessions, ids, files of a checkpoint."""
DIGEST = re.compile(r"[0-9a-f]{64}\Z")
"""A sha256 in hexadecimal."""
SECRET = re.compile(r"[!-~]{1,200}\Z")
"""A secret, which goes into a header of HTTP."""

LEAVE = "leave this run, and tell whoever gave you the link"
"""The hint of an error about an invalid message of a coordinator."""
MOST_WORDS = 1000
"""The most characters of a sentence from another machine."""
_COMMANDS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e0fff]"
)
"""Control characters, characters that change the writing direction, and lone surrogates, which no stream can encode."""
_LONGEST_NAME = 255  # bytes, on the file systems that there are
_HOST = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,62})(\.[A-Za-z0-9_-]{1,63}){0,30}\.?\Z")
_NO_HOSTS = frozenset({"unix", "unix-abstract", "dns", "ipv4", "ipv6", "vsock", "xds", "google-c2p", "file", "fd"})
"""Not host names: before a colon gRPC takes these for a scheme, such as a Unix socket of this machine."""


class Hostile(Refused):
    """Another machine sent an invalid value; the error's message never contains its raw text."""


def matching(pattern: re.Pattern[str], text: str, what: str) -> str:
    """The text, which the whole pattern must match."""
    if not pattern.match(text):
        raise Hostile(f"{quoted(text)} is no {what}", LEAVE)
    return text


def node_name(text: str) -> str:
    """A node's name."""
    if why := names.mistake(text):
        raise Hostile(printable(why), LEAVE)
    return text


def digest(text: str) -> str:
    """A sha256, 64 hexadecimal digits."""
    return matching(DIGEST, text, "digest")


def address(text: str) -> str:
    """HOST:PORT with an IP address or a name: nothing that a library may take for another kind of address."""
    try:
        host = split_address(text)[0] if len(text) < 300 else ""
    except FarflungError:
        host = ""
    if not _is_host(host):
        raise Hostile(f"{quoted(text)} is no HOST:PORT", LEAVE)
    return text


def _is_host(host: str) -> bool:
    try:
        ipaddress.ip_address(host.partition("%")[0])
        return host.isascii() and host.isprintable()
    except ValueError:
        return bool(_HOST.match(host)) and host.lower() not in _NO_HOSTS


def whole(number: float, least: int, most: int, what: str) -> int:
    """A whole number from ``least`` to ``most``."""
    if isinstance(number, bool) or not math.isfinite(number) or number != int(number) or not least <= number <= most:
        raise Hostile(f"{number!r:.30} is no {what}: a whole number from {least} to {most}")
    return int(number)


def below(folder: Path, *parts: str) -> Path:
    """``folder / NAME / ...``, guaranteed to be below the folder, whatever the parts and symbolic links are.

    Only this function may make a path from strings of another machine. Hostile: a part is not a single file name, or
    the path leads out of the folder.
    """
    for name in parts:
        if not is_file_name(name):
            raise Hostile(f"{quoted(name)} is no name for a file", LEAVE)
    path = folder.joinpath(*parts)
    root = folder.resolve()
    try:
        inside = parts and root in path.resolve().parents
    except (OSError, RuntimeError):  # symbolic links in a circle
        inside = False
    if not inside:
        raise Hostile(f"{path} leads out of {root}", "remove the link that is there")
    return path


def is_file_name(name: str) -> bool:
    """Whether ``name`` is a single file name."""
    try:
        size = len(name.encode())
    except UnicodeEncodeError:  # half of a surrogate pair
        return False
    return 0 < size <= _LONGEST_NAME and name.isprintable() and name not in (".", "..") and not set(name) & set("/\\:")


def printable(text: str, most: int = 200) -> str:
    """Text from another machine as one line without control characters, of at most ``most`` characters."""
    text = text[:most]
    return text if text.isprintable() else "".join(letter if letter.isprintable() else " " for letter in text)


def told(text: str) -> str:
    """An error's message, and after the first line end its hint, each as ``printable``."""
    message, _, hint = text.partition("\n")
    shown = printable(message, MOST_WORDS)
    return f"{shown}\n{printable(hint, MOST_WORDS)}" if hint else shown


def harmless(text: str) -> str:
    """Text that may be shown on a terminal: control characters other than line ends and tabs become spaces."""
    return text if text.isprintable() else _COMMANDS.sub(" ", text)


def harmless_values(value: Any) -> Any:
    """A JSON value with every string in it made harmless, keys too."""
    if isinstance(value, str):
        return harmless(value)
    if isinstance(value, Mapping):
        return {harmless_values(key): harmless_values(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [harmless_values(item) for item in value]
    return value


def quoted(text: str) -> str:
    """The beginning of a text from another machine, in quotes, for a message."""
    return repr(printable(text, 60))
