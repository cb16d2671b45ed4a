"""Secure aggregation of codecs whose encodings are integers: the owner learns the sum and nothing else.

After Bonawitz et al. (CCS 2017), on quantised vectors as in ScionFL (Ben-Itzhak et al., 2022): each pair of workers
agrees on a mask that one adds and the other subtracts, each worker adds a mask of its own, and the secrets behind the
masks are secret-shared so that any ``threshold`` workers can replace those that drop out. Parties are assumed honest
but
curious: there is no defence against an owner that shows different lists to different workers.

    owner                                worker
    collect Client.keys()          <-    keys()
    send all keys                  ->    shares(keys): one sealed pair of shares for each other worker
    forward them                   ->    accept(sealed shares)
    collect masked levels          <-    masked(levels)
    send who answered              ->    reveal(answered): shares of keys (who did not) or masks
    Owner.total(...)

If a sum needs all members, as in a round of a view, no secrets are shared: ``Pairwise``.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from ..errors import CodecError

PRIME = (1 << 521) - 1
"""A Mersenne prime: secrets are shared as points of polynomials over its field."""


def share(secret: int, threshold: int, points: Collection[int]) -> dict[int, int]:
    """Shamir's shares of a secret below PRIME, by point (not 0); any ``threshold`` of them recover it."""
    polynomial = [secret] + [secrets.randbelow(PRIME) for _ in range(threshold - 1)]
    out = {}
    for point in points:
        value = 0
        for coefficient in reversed(polynomial):
            value = (value * point + coefficient) % PRIME
        out[point] = value
    return out


def recover(shares: Mapping[int, int]) -> int:
    """The secret of at least ``threshold`` shares."""
    secret = 0
    for point, value in shares.items():
        top = bottom = 1
        for other in shares:
            if other != point:
                top, bottom = top * -other % PRIME, bottom * (point - other) % PRIME
        secret = (secret + value * top * pow(bottom, -1, PRIME)) % PRIME
    return secret


def stream(secret: bytes, count: int, bits: int) -> np.ndarray:
    """uint32 ``[count]``, uniform below 2^bits: ChaCha20's key stream."""
    key = hashlib.sha256(b"farflung mask" + secret).digest()
    encryptor = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()
    words = np.frombuffer(encryptor.update(bytes(4 * count)), np.uint32)
    return words & np.uint32((1 << bits) - 1)


class Pairwise:
    """One member's masks, for sums that need all members.

    Each pair agrees on a mask (X25519, HKDF, ChaCha20), which the member with the smaller name adds and the other
    subtracts. Each object has a new key, so two objects never have the same masks; with one object, use each
    ``context`` only once.
    """

    def __init__(self, me: str, members: Collection[str]) -> None:
        self.me = me
        self.missing = set(members) - {me}
        """Members whose keys have not arrived yet."""
        self._private = X25519PrivateKey.generate()
        self.public = self._private.public_key().public_bytes_raw()
        self._secrets: dict[str, bytes] = {}

    def take(self, other: str, public: bytes) -> None:
        """Take the public key of another member. CodecError if it is invalid, or if none is missing of that member."""
        if other not in self.missing:
            raise CodecError(f"a key of {other}, of whom none is wanted")
        try:
            self._secrets[other] = _agree(self._private, public)
        except ValueError as error:
            raise CodecError(f"the key of {other} is none: {error}") from None
        self.missing.discard(other)

    def masked(self, words: Sequence[np.ndarray], context: bytes) -> list[np.ndarray]:
        """Unsigned arrays plus all masks, modulo their word size. Without the secrets the result looks uniform."""
        if self.missing:
            raise CodecError(f"the keys of {', '.join(sorted(self.missing))} are not here yet")
        out = [array.copy() for array in words]
        for other, secret in self._secrets.items():
            key = HKDF(hashes.SHA256(), 32, None, b"farflung masks" + context).derive(secret)
            encryptor = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()
            for total in out:
                mask = np.frombuffer(encryptor.update(bytes(total.nbytes)), total.dtype)
                (np.add if self.me < other else np.subtract)(total, mask, out=total)
        return out


def _agree(private: X25519PrivateKey, public: bytes) -> bytes:
    return private.exchange(X25519PublicKey.from_public_bytes(public))


@dataclass
class Client:
    """One worker's part. index: 1 .. size; bits: of the sum (``Summed.sum_bits(size)``)."""

    index: int
    size: int
    threshold: int
    bits: int
    _mask: X25519PrivateKey = field(default_factory=X25519PrivateKey.generate, repr=False)
    _seal: X25519PrivateKey = field(default_factory=X25519PrivateKey.generate, repr=False)
    _own: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)
    _keys: dict[int, tuple[bytes, bytes]] = field(default_factory=dict, repr=False)
    _held: dict[int, tuple[int, int]] = field(default_factory=dict, repr=False)
    _revealed: bool = False

    def __post_init__(self) -> None:
        if not self.size // 2 < self.threshold <= self.size or not 1 <= self.index <= self.size:
            raise CodecError(f"a threshold of {self.threshold} of {self.size} workers: more than half is needed")

    def keys(self) -> bytes:
        """Both public keys, 64 bytes."""
        return self._mask.public_key().public_bytes_raw() + self._seal.public_key().public_bytes_raw()

    def shares(self, keys: Mapping[int, bytes]) -> dict[int, bytes]:
        """For each other worker that answered (at least ``threshold``), sealed shares of this one's secrets."""
        if len(keys) < self.threshold or keys.get(self.index) != self.keys():
            raise CodecError(f"{len(keys)} workers' keys: at least {self.threshold} are needed, one's own among them")
        if any(len(key) != 64 for key in keys.values()) or len(set(keys.values())) != len(keys):
            raise CodecError("a worker's keys are not two keys of its own")
        self._keys = {other: (key[:32], key[32:]) for other, key in keys.items()}
        private = share(int.from_bytes(self._mask.private_bytes_raw(), "big"), self.threshold, keys)
        own = share(int.from_bytes(self._own, "big"), self.threshold, keys)
        self._held[self.index] = (private[self.index], own[self.index])
        return {
            other: self._cipher(other).encrypt(
                self._nonce(self.index, other), json.dumps([private[other], own[other]]).encode(), None
            )
            for other in keys
            if other != self.index
        }

    def accept(self, sealed: Mapping[int, bytes]) -> None:
        """Keep the shares that the others made for this worker."""
        for other, data in sealed.items():
            try:
                private, own = json.loads(self._cipher(other).decrypt(self._nonce(other, self.index), data, None))
            except (InvalidTag, KeyError, ValueError) as error:
                raise CodecError(f"worker {other}'s shares can't be opened") from error
            self._held[other] = (int(private), int(own))

    def masked(self, levels: torch.Tensor) -> np.ndarray:
        """The levels (int32, 0 ..) plus all masks, modulo 2^bits: uint32, uniform to anyone alone."""
        total = levels.cpu().numpy().astype(np.uint32) + stream(self._own, levels.numel(), self.bits)
        for other in self._held:
            if other != self.index:
                mask = stream(_agree(self._mask, self._keys[other][0]), levels.numel(), self.bits)
                total = total + mask if self.index < other else total - mask
        return np.asarray(total & np.uint32((1 << self.bits) - 1))

    def reveal(self, answered: Collection[int]) -> dict[int, int]:
        """For each worker that answered, a share of its own mask; for each that did not, a share of its key. Only one
        call is allowed."""
        if self._revealed or len(set(answered)) < self.threshold or self.index not in answered:
            raise CodecError("shares are revealed once, to at least the threshold of workers that answered")
        self._revealed = True
        return {other: held[1 if other in answered else 0] for other, held in self._held.items()}

    def _cipher(self, other: int) -> ChaCha20Poly1305:
        secret = _agree(self._seal, self._keys[other][1])
        return ChaCha20Poly1305(hashlib.sha256(b"farflung seal" + secret).digest())

    def _nonce(self, sender: int, to: int) -> bytes:
        return sender.to_bytes(6, "big") + to.to_bytes(6, "big")


def total(
    masked: Mapping[int, np.ndarray],
    revealed: Mapping[int, Mapping[int, int]],
    keys: Mapping[int, bytes],
    shared: Collection[int],
    threshold: int,
    bits: int,
) -> np.ndarray:
    """The owner's part: the sum of the levels of all workers that answered, uint32.

    masked: of the workers that answered; revealed: the shares from at least ``threshold`` of them; shared: the workers
    whose shares had been handed out, so that the others masked against them.
    """
    if len(revealed) < threshold:
        raise CodecError(f"{len(revealed)} workers revealed shares, {threshold} are needed: the sum is lost")
    count = len(next(iter(masked.values())))
    out = np.zeros(count, np.uint32)
    for vector in masked.values():
        out += vector
    for worker in shared:
        secret = recover({by: shares[worker] for by, shares in list(revealed.items())[:threshold]}).to_bytes(66, "big")
        if worker in masked:
            out -= stream(secret[-32:], count, bits)
            continue
        private = X25519PrivateKey.from_private_bytes(secret[-32:])
        for other in masked:
            mask = stream(_agree(private, keys[other][:32]), count, bits)
            out = out - mask if other < worker else out + mask
    return np.asarray(out & np.uint32((1 << bits) - 1))
