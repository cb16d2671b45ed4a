"""Which messages of which peers this node takes now: the current view, as a pure table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ....proto.control_pb2 import Member

TAKE = ""
WAIT = "wait"
OTHER_VIEW = "of another view"
NOT_MEMBER = "from a node outside the view"
OTHER_SESSION = "from another session"
REVOKED = "from an evicted node"


@dataclass
class Membership:
    """The view that this node is in (0: none), its members, and the newest view that it has seen."""

    name: str
    view: int = 0
    newest: int = 0
    members: dict[str, Member] = field(default_factory=dict)
    revoked: frozenset[str] = frozenset()
    """Names of evicted nodes; their certificates stay valid for some time."""

    def enter(self, view: int, members: Iterable[Member]) -> None:
        self.view = view
        self.newest = max(self.newest, view)
        self.members = {member.name: member for member in members}

    def leave(self) -> None:
        self.view = 0

    def peers(self) -> dict[str, Member]:
        """The other members of the current view."""
        return {name: member for name, member in self.members.items() if name != self.name} if self.view else {}

    def verdict(self, sender: str, session: str, view: int) -> str:
        """TAKE; WAIT if the view is one that this node has not entered yet; or the reason why the message is dropped.

        A peer may enter a view a moment before this node: its messages then wait in its stream.
        """
        if sender in self.revoked:
            return REVOKED
        if view > self.newest:
            return WAIT
        if view != self.view or view == 0:
            return OTHER_VIEW
        member = self.members.get(sender)
        if member is None:
            return NOT_MEMBER
        return TAKE if member.session == session else OTHER_SESSION
