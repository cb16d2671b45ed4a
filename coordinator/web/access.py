"""Access to the page: two tokens in STATE/page (viewer, operator), a cookie for the browser, a header against forged
actions.

The tokens are made at the first start and stay, so that bookmarks and a scraping Prometheus work after a restart.
Deleting a file and starting again makes a new one.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ...proto.errors import FarflungError
from ...proto.process.files import write_whole

VIEWER, OPERATOR = "viewer", "operator"
FOLDER, SCRAPE = "page", "scrape"
FORGERY_HEADER = "x-farflung-action"
"""The header with a word that only the page of a logged-in operator knows; another site can't send such a header."""


@dataclass(frozen=True)
class Tokens:
    """``viewer`` may look, ``operator`` may also act and sees the join line. ``run``: the run's id, for the cookie."""

    run: str
    viewer: str = field(repr=False)
    operator: str = field(repr=False)

    @property
    def cookie(self) -> str:
        """The cookie's name. It contains the run's id, because browsers share cookies among all ports of a host."""
        return f"farflung_{self.run}"

    def role_of(self, token: str) -> str | None:
        """VIEWER, OPERATOR or None. Takes constant time."""
        viewer, operator = _same(token, self.viewer), _same(token, self.operator)
        return OPERATOR if operator else VIEWER if viewer else None

    def role_of_request(self, cookies: Mapping[str, str], authorization: str) -> str | None:
        """The role by a ``Bearer`` header or the cookie."""
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() == "bearer":
            return self.role_of(token.strip())
        return self.role_of(cookies.get(self.cookie, ""))

    @property
    def action_word(self) -> str:
        """The required value of FORGERY_HEADER."""
        return hmac.new(self.operator.encode(), b"farflung action", hashlib.sha256).hexdigest()

    def may_act(self, role: str | None, word: str) -> bool:
        """Whether an action comes from the operator's own page, or from a script that has the token."""
        return role == OPERATOR and _same(word, self.action_word)


def load_tokens(state: Path, run: str) -> Tokens:
    """The tokens of STATE/page/{viewer,operator}.token, made where they are missing; readable by their owner only."""
    folder = state / FOLDER
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return Tokens(run, _token(folder / "viewer.token"), _token(folder / "operator.token"))
    except OSError as error:
        raise FarflungError(
            f"cannot keep the page's tokens in {folder}: {error.strerror}", "leave the page out with --no-page"
        ) from None


def write_certificate(state: Path, certificate: bytes, key: bytes) -> tuple[Path, Path]:
    """The run's certificate and key (PEM) as files, because the TLS server accepts only files."""
    folder = state / FOLDER
    files = (folder / "tls.pem", folder / "tls.key")
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for file, text in zip(files, (certificate, key), strict=True):
            write_whole(file, text, mode=0o600)
    except OSError as error:
        raise FarflungError(
            f"cannot keep the page's certificate in {folder}: {error.strerror}", "keep the page on loopback"
        ) from None
    return files


def write_scrape(state: Path, viewer: str, certificate: tuple[Path, Path] | None) -> None:
    """Write STATE/scrape: the viewer's token and the certificate, all that a Prometheus needs."""
    folder = state / SCRAPE
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_whole(folder / "viewer.token", viewer.encode(), mode=0o600)
        if certificate is not None:
            write_whole(folder / "tls.pem", certificate[0].read_bytes(), mode=0o600)
    except OSError as error:
        raise FarflungError(
            f"cannot keep the page's token in {folder}: {error.strerror}", "leave the page out with --no-page"
        ) from None


def _token(path: Path) -> str:
    if not path.exists():
        write_whole(path, secrets.token_urlsafe(24).encode(), mode=0o600)
    return path.read_text().strip()


def _same(given: str, wanted: str) -> bool:
    return bool(wanted) and hmac.compare_digest(given.encode(), wanted.encode())
