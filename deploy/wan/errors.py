"""The one error of the emulator."""

from __future__ import annotations

from ...proto.errors import FarflungError


class WanError(FarflungError):
    """A topology, a host or a link that a person can correct, or a machine that cannot emulate."""
