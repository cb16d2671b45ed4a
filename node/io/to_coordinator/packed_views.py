"""Rebuilds views that the coordinator sends as edits of earlier ones (coordinator/membership/view_orders.py). Pure."""

from __future__ import annotations

from google.protobuf.message import DecodeError

from ....proto.control_pb2 import PackedView, View
from ....proto.messages import delta


class PackedViews:
    """Keeps the bytes of recent views, which later views may be edits of."""

    def __init__(self) -> None:
        self._bytes: dict[int, bytes] = {}

    @property
    def newest(self) -> int:
        """The number of the newest view that is held, 0 for none; the hello carries it."""
        return max(self._bytes, default=0)

    def open(self, packed: PackedView) -> View:
        """The whole view. ValueError if it cannot be rebuilt; then all views are dropped, and the next hello says 0."""
        try:
            if packed.base and packed.base not in self._bytes:
                raise ValueError(f"an order has edits of view {packed.base}, which this node does not have")
            data = delta.apply(self._bytes.get(packed.base, b""), packed.edits)
            if delta.digest(data) != packed.digest:
                raise ValueError(f"view {packed.number} is another than the coordinator's")
            view = View.FromString(data)
        except (ValueError, DecodeError) as error:
            self._bytes = {}
            raise ValueError(str(error)) from None
        kept = {number: known for number, known in self._bytes.items() if number >= packed.base}
        kept[packed.number] = data
        self._bytes = {number: kept[number] for number in sorted(kept)[-delta.KEPT :]}
        return view
