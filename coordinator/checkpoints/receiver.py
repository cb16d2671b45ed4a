"""Receives one file of a checkpoint, from its first piece until it is whole."""

from __future__ import annotations

import hashlib
import os
import threading
from typing import BinaryIO

from ...proto.control_pb2 import Shard
from ...proto.words.border import WORD, below
from .acceptance import Expected
from .checkpoints import Checkpoints, Complete
from .manifest import MANIFEST
from .refused import NotWritten, ShardRefused


def receive(checkpoints: Checkpoints, shard: Shard, wanted: Expected | None = None) -> Receiver | None:
    """A Receiver for a file, given its first shard; None where the checkpoint of this step or a later one is complete.
    ``wanted``: see Receiver.

    ShardRefused for a bad name.
    """
    if not WORD.match(shard.file) or shard.file == MANIFEST:
        raise ShardRefused(f"{shard.file!r} is no name for a file of a checkpoint")
    if checkpoints.is_past(shard.step):
        return None
    return Receiver(checkpoints, shard.step, shard.file, wanted)


class Receiver:
    """One file that is being received: ``write`` its shards in order, then ``close``, also when the stream broke."""

    def __init__(self, checkpoints: Checkpoints, step: int, file: str, wanted: Expected | None = None) -> None:
        """``wanted``: what the file has to be; None: any file."""
        self._checkpoints, self.step, self.file, self._wanted = checkpoints, step, file, wanted
        self._era = checkpoints.era(step)
        self._hash = hashlib.sha256()
        self.offset = 0
        """Bytes received."""
        self._out: BinaryIO | None = None
        self._closed = False
        self._writing = threading.Lock()
        """A stream may break while a thread still writes its last piece: the lock puts one after the other."""
        self._path = below(checkpoints.incoming, f"{step}.{file}.{id(self):x}")

    def write(self, shard: Shard) -> Complete | None:
        """Take a piece; see ``_write``."""
        with self._writing:
            if self._closed:
                raise ShardRefused(f"the stream of {self.file} of step {self.step} broke")
            return self._write(shard)

    def _write(self, shard: Shard) -> Complete | None:
        """Take a piece; with the last one the file is checked and kept. Returns the checkpoint that it completed.

        ShardRefused: out of order, wrong digest, an older era. NotWritten: the disk can't store it.
        """
        if self._checkpoints.era(self.step) != self._era:
            raise ShardRefused(f"step {self.step} was given up by a view change")
        if (shard.step, shard.file) != (self.step, self.file) or shard.offset != self.offset:
            raise ShardRefused(f"piece at {shard.offset} of {shard.file} came where {self.offset} was due")
        if self._wanted is not None and self.offset + len(shard.data) > self._wanted.most:
            raise ShardRefused(f"{self.file} of step {self.step} has more than {self._wanted.most} bytes")
        try:
            if self._out is None:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                self._out = self._path.open("ab" if self.offset else "wb")
            self._out.write(shard.data)
            self._hash.update(shard.data)
            self.offset += len(shard.data)
            self._checkpoints.arrived += len(shard.data)
            if not shard.last:
                return None
            if self._hash.digest() != shard.digest:
                raise ShardRefused(f"{self.file} of step {self.step} arrived with another digest; send it again")
            self._out.flush()
            os.fsync(self._out.fileno())
            self._out.close()
            return self._checkpoints.keep_file(self._path, self._era, self._hash.hexdigest(), shard, self._wanted)
        except OSError as error:
            raise NotWritten(f"cannot write {self.file} of step {self.step}: {error.strerror or error}") from None

    def pause(self) -> None:
        """The stream broke; keep the received part, with which another stream may continue."""
        with self._writing:
            if self._out is not None:
                self._out.close()
                self._out = None

    def close(self) -> None:
        """Forget an unfinished file."""
        with self._writing:
            self._closed = True
            if self._out is not None:
                self._out.close()
            if self.offset or self._out is not None:
                self._path.unlink(missing_ok=True)
