"""Keys of random numbers, and seeds mixed from several numbers. ``philox`` makes the random words."""

from __future__ import annotations

from dataclasses import dataclass

_MASK = 0xFFFFFFFF
_DITHER = 0x44495448


@dataclass(frozen=True)
class Key:
    """The key of random numbers. seed: u64, of (run, tensor); step: u32; rank: the worker's number; members: the number
    of workers, numbered by rank, whose blobs will be summed (1: not known); turn: an offset in units of 2^-24, added to
    uniform numbers modulo 1."""

    seed: int = 0
    step: int = 0
    rank: int = 0
    members: int = 1
    turn: int = 0

    @property
    def private(self) -> Key:
        """The key of this worker's own rounding: a different stream for each rank, even if the seed is shared."""
        return Key(mix(self.seed, self.rank), self.step) if self.rank else self

    @property
    def dither(self) -> Key:
        """The key of this worker's rounding. All members use the same uniform numbers, each with the offset
        rank / members modulo 1. Each member's numbers are uniform, so rounding is unbiased. Over all members they are
        evenly spread, so that errors cancel in the sum: if members have the same value, the error of the mean is below
        1 / members of a level. Absent members leave a gap, but cause no bias."""
        if self.members <= 1 or self.rank >= self.members:
            return self.private
        return Key(mix(self.seed, _DITHER), self.step, turn=(self.rank << 24) // self.members)

    def words(self) -> tuple[int, int]:
        return self.seed & _MASK, (self.seed >> 32) & _MASK


def mix(*parts: int) -> int:
    """One u64 seed from several numbers (splitmix64), such as (run, stage, block, rank)."""
    value = 0x243F6A8885A308D3
    for part in parts:
        value = (value ^ (part & 0xFFFFFFFFFFFFFFFF)) + 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF
        value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
        value = (value ^ value >> 27) * 0x94D049BB133111EB & 0xFFFFFFFFFFFFFFFF
        value ^= value >> 31
    return value
