"""What randomness depends on: a key, and seeds mixed of several numbers. The words themselves: ``philox``."""

from __future__ import annotations

from dataclasses import dataclass

_MASK = 0xFFFFFFFF
_DITHER = 0x44495448


@dataclass(frozen=True)
class Key:
    """What randomness depends on. seed: u64, of (run, tensor); step: u32; rank: the worker, where they must differ;
    members: of so many, numbered by rank, it is one whose sum is wanted (1: nobody knows); turn: added to uniform
    numbers, modulo 1, in parts of 2^-24."""

    seed: int = 0
    step: int = 0
    rank: int = 0
    members: int = 1
    turn: int = 0

    @property
    def private(self) -> Key:
        """The key of this worker's own rounding: another stream for each rank, also where the seed is shared."""
        return Key(mix(self.seed, self.rank), self.step) if self.rank else self

    @property
    def dither(self) -> Key:
        """The key of this worker's rounding. Among members all take the same uniform numbers, each turned by its part
        of 1: every member's are uniform, so nothing is biased, and among all they are spread evenly, so that errors
        cancel in the sum: where members have the same value its mean is wrong by less than 1 / members of a level.
        Absent members leave a gap and no bias."""
        if self.members <= 1 or self.rank >= self.members:
            return self.private
        return Key(mix(self.seed, _DITHER), self.step, turn=(self.rank << 24) // self.members)

    def words(self) -> tuple[int, int]:
        return self.seed & _MASK, (self.seed >> 32) & _MASK


def mix(*parts: int) -> int:
    """One u64 seed of several numbers (splitmix64): to derive a seed per (run, stage, block, rank)."""
    value = 0x243F6A8885A308D3
    for part in parts:
        value = (value ^ (part & 0xFFFFFFFFFFFFFFFF)) + 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF
        value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
        value = (value ^ value >> 27) * 0x94D049BB133111EB & 0xFFFFFFFFFFFFFFFF
        value ^= value >> 31
    return value
