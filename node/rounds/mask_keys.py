"""The exchange of mask keys between a section's members, for masked contributions (arithmetic/ways/masked.py)."""

from __future__ import annotations

from collections.abc import Collection

from ...compress import CodecError
from ...compress.summable.secure import Pairwise
from ...proto import data_pb2
from .protocol.machine import Rounds
from .protocol.outlet import Outlet, blocking


class MaskKeys:
    """The mask keys that one member knows in one view."""

    def __init__(self, masks: Pairwise, rounds: Rounds, outlet: Outlet) -> None:
        self._masks, self._rounds, self._outlet = masks, rounds, outlet
        self._keys: dict[str, bytes] = {}

    @property
    def missing(self) -> Collection[str]:
        """Members whose keys have not arrived."""
        return self._masks.missing

    def introduce(self, again: bool) -> None:
        """Send this node's key to the other members. ``again``: only to those whose keys have not arrived; they
        answer with theirs."""
        for name in self._rounds.plan.members:
            if name != self._rounds.me and (not again or name in self.missing):
                self._send(name, again)

    def take(self, sender: str, said: data_pb2.MaskKey, key: bytes) -> None:
        """Another member's key."""
        members = self._rounds.plan.members
        if said.wanted and sender in members:
            self._send(sender, False)
        if self._keys.get(sender) == key:
            return  # the same key again
        try:
            self._masks.take(sender, key)
            self._keys[sender] = key
        except CodecError as problem:
            self._outlet.refuse(sender, str(problem), blocking(len(members)))

    def _send(self, to: str, wanted: bool) -> None:
        body = data_pb2.MaskKey(section=self._rounds.plan.section, round=self._rounds.applied + 1, wanted=wanted)
        self._outlet.send(to, data_pb2.Header(kind=data_pb2.KEY, mask_key=body), (self._masks.public,))
