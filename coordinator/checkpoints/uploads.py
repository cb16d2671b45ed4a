"""Uploads of checkpoint files. After a stream breaks, the next stream resumes where it ended.

The received part of a file stays until the file is whole, its sender begins a later one, or the file is not needed. So
an upload of an hour succeeds over a link that breaks every minute, and no byte is sent twice.

A checkpoint has the files of all stages for one step. A sender on a slow link skips steps: when an upload ends, it
sends its newest file. The files of a skipped step are then useless (``given_up``), so the other senders skip to their
newest too. All meet at one step, and checkpoints complete as often as the slowest link allows.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ...proto.control_pb2 import Shard
from .acceptance import Expected
from .checkpoints import Checkpoints, Complete
from .receiver import Receiver, receive
from .refused import ShardRefused

Owner = tuple[str, str]
"""(node, session) of the sender."""
Which = tuple[int, int]
"""(view, step) of a file."""
_SENDERS = 2


class GivenUp(ShardRefused):
    """The rest of this file is not needed."""


def given_up(which: Which, newest: Mapping[str, Which], whole: Callable[[str], bool]) -> str:
    """Why a step's checkpoint can't become complete any more; empty while it can.

    newest: file -> (view, step) of the upload that its sender began last. whole: whether a file of ``which`` has
    arrived whole. A view of 0 is unknown.
    """
    for file, (view, step) in sorted(newest.items()) if which[0] else ():
        if view == which[0] and step > which[1] and not whole(file):
            return f"the checkpoint of step {which[1]} is left out: {file} goes on with step {step}, its link is slow"
    return ""


@dataclass
class _Upload:
    which: Which
    receiver: Receiver
    stream: int = 0
    """The number of the file's newest stream: data of older streams are ignored."""
    taking: threading.Lock = field(default_factory=threading.Lock)
    """Held while a piece is stored, so that the answer of `held` stays true."""


class Incoming:
    """One stream of a file: ``write`` its shards in order, then ``close``, also when the stream broke."""

    def __init__(self, uploads: Uploads, key: tuple[str, str], upload: _Upload) -> None:
        self._uploads, self._key, self._upload = uploads, key, upload
        upload.stream += 1
        self._stream = upload.stream
        self._over = False

    def write(self, shard: Shard) -> Complete | None:
        """Take a piece; with the last one the file is kept. Returns the checkpoint that it completed.

        ShardRefused: as `Receiver.write`, or another stream has taken over; GivenUp: the file is not needed any more.
        """
        with self._upload.taking:
            if self._stream != self._upload.stream:
                raise ShardRefused(f"another stream goes on with {shard.file} of step {shard.step}")
            self._over = True  # reset below if the write succeeds
            if why := self._uploads.given_up(self._upload.which):
                raise GivenUp(why)
            complete = self._upload.receiver.write(shard)
            self._over = shard.last
            return complete

    def close(self) -> None:
        """The stream has ended. The received part of its file stays, for a stream that resumes it."""
        with self._upload.taking:
            if self._stream != self._upload.stream:
                return
            self._upload.receiver.pause()
        if self._over:
            self._uploads.forget(self._key, self._upload)


class Uploads:
    """The files on their way into a run's checkpoints. Methods block on the disk: call them from threads."""

    def __init__(self, checkpoints: Checkpoints) -> None:
        self._checkpoints = checkpoints
        self._changing = threading.Lock()
        """Protects the two tables. Never held during disk I/O."""
        self._open: dict[tuple[str, str], tuple[Owner, _Upload]] = {}
        """(node, file) -> its upload."""
        self._newest: dict[str, Which] = {}

    def held(self, owner: Owner, step: int, file: str, view: int) -> int:
        """Bytes of a file that were received. Data of older streams of this file is ignored from now on.

        GivenUp: the file is not needed.
        """
        if why := self.given_up((view, step)):
            raise GivenUp(why)
        found = self._of(owner, step, file, view)
        if found is None:
            return 0
        with found.taking:
            found.stream += 1
            found.receiver.pause()
            return found.receiver.offset

    def begin(self, owner: Owner, shard: Shard, wanted: Expected | None = None) -> Incoming | None:
        """A stream begins, at offset 0 or at the offset that `held` gave. None where the checkpoint of this step or a
        later one is complete. ``wanted``: what the file has to be, see Receiver.

        ShardRefused: a bad name, or the part of the file before the offset is missing. GivenUp: the sender has begun a
        later step's file.
        """
        key, which = (owner[0], shard.file), (shard.view, shard.step)
        known = self._open.get(key)
        if known is not None and known[0] == owner and known[1].which > which:
            later = known[1].which[1]
            raise GivenUp(f"the checkpoint of step {shard.step} is left out: {owner[0]} goes on with step {later}")
        upload = self._of(owner, shard.step, shard.file, shard.view)
        receiver = receive(self._checkpoints, shard, wanted)
        if receiver is None:
            return None
        if upload is None or not shard.offset:
            if shard.offset:
                raise ShardRefused(f"nothing of {shard.file} of step {shard.step} is here to go on with: send it whole")
            upload = _Upload(which, receiver)
            with self._changing:
                over = [self._open.pop(key)] if key in self._open else []
                self._open[key] = owner, upload
                self._newest[shard.file] = max(which, self._newest.get(shard.file, which))
                over += [self._open.pop(other) for other in self._others(shard.file)]
            for _, old in over:
                old.receiver.close()
            self._checkpoints.leave_out(self.given_up)
        return Incoming(self, key, upload)

    def _others(self, file: str) -> list[tuple[str, str]]:
        """Keys of the other senders' uploads of a file beyond the last one: at most two parts of a file are kept,
        because a sender that has left would leave its part for ever."""
        known = [(upload.which, key) for key, (_, upload) in self._open.items() if key[1] == file]
        return [key for _, key in sorted(known)[:-_SENDERS]]

    def given_up(self, which: Which) -> str:
        """Calls the function `given_up` of this module with the present uploads."""
        with self._changing:
            newest = dict(self._newest)
        return given_up(which, newest, lambda file: self._checkpoints.has_whole(*which, file))

    def forget(self, key: tuple[str, str], upload: _Upload) -> None:
        """Delete the received part of an upload."""
        with self._changing:
            if (known := self._open.get(key)) is not None and known[1] is upload:
                del self._open[key]
        upload.receiver.close()

    def _of(self, owner: Owner, step: int, file: str, view: int) -> _Upload | None:
        known = self._open.get((owner[0], file))
        return known[1] if known is not None and known[0] == owner and known[1].which == (view, step) else None
