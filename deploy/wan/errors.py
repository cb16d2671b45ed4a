"""WanError: the one error that the emulator raises on purpose."""

from __future__ import annotations

from ...proto.errors import FarflungError


class WanError(FarflungError):
    """A mistake in a topology, a host or a link that a person can correct, or a machine that can't emulate a WAN."""
