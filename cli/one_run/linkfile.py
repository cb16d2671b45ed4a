"""Links in files: a link is a secret, and every user of a machine can see the arguments of commands."""

from __future__ import annotations

from pathlib import Path

from ...proto.errors import FarflungError
from ...proto.process.files import write_whole

MARK = "@"


def link_text(word: str) -> str:
    """The link that ``word`` is, or that the file of ``@FILE`` holds. FarflungError when there is no such file."""
    if not word.startswith(MARK):
        return word
    path = Path(word[len(MARK) :]).expanduser()
    try:
        text = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        hint = "write the link into it: farflung coordinator start JOB --link-file FILE"
        raise FarflungError(f"can't read a link from {path}: {why}", hint) from None
    # People save the whole line that the coordinator printed.
    return text.removeprefix("farflung join").strip()


def write_link(path: Path, link: str) -> None:
    """Write the link atomically to a file that only its owner can read."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, f"{link}\n".encode(), mode=0o600)
    except OSError as error:
        raise FarflungError(f"can't write the link to {path}: {error.strerror}", "name another --link-file") from None
