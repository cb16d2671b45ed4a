"""Views as orders: a node that has an earlier view gets only the changes. No I/O.

Two successive views of a thousand nodes differ by a node or two, and each is sent to a thousand nodes. A node says in
its hello which view's bytes it has, and each Prepared says that it has the bytes of that view; it keeps them until it
gets the changes to a newer one. A node that has named no view gets whole views.
"""

from __future__ import annotations

from ...proto import control_pb2 as pb
from ...proto.messages import delta


class ViewOrders:
    """The bytes of the newest views, and which session has which: a node with an older one gets the whole view."""

    def __init__(self) -> None:
        self._bytes: dict[int, bytes] = {}
        self._edits: dict[tuple[int, int], bytes] = {}
        self._held: dict[str, int] = {}

    def attend(self, session: str, hello: pb.Hello) -> None:
        """A control stream is open; only the hello counts, because the node may have lost the view that it had
        before."""
        self._held.pop(session, None)
        if hello.HasField("holds"):
            self._held[session] = hello.holds

    def prepared(self, session: str, view: int) -> None:
        """A node has taken a view in."""
        if session in self._held and view in self._bytes:
            self._held[session] = view

    def left(self, session: str) -> None:
        """A session is over."""
        self._held.pop(session, None)

    def order(self, session: str, order: pb.Order) -> pb.Order:
        """``order``, which has a view, in the form for this session. A view that is sent again has the same bytes."""
        base = self._held.get(session)
        if base is None:
            return order
        number = order.view.number
        if number not in self._bytes:
            self._bytes[number] = order.view.SerializeToString(deterministic=True)
            for old in sorted(self._bytes)[: -delta.KEPT]:
                del self._bytes[old]
                self._edits = {pair: edits for pair, edits in self._edits.items() if old not in pair}
        new = self._bytes[number]
        base = base if base in self._bytes else 0
        edits = self._edits.get((base, number))
        if edits is None:
            edits = self._edits[base, number] = delta.edits(self._bytes.get(base, b""), new)
        packed = pb.PackedView(number=number, base=base, edits=edits, digest=delta.digest(new))
        return pb.Order(term=order.term, packed=packed)
