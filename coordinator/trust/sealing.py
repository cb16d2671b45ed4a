"""The run's CA for coordinators on several machines: stored in their database, with the keys sealed by a passphrase.

A reader of the database, or of a backup, gets the certificates and the sealed keys. The keys are encrypted by Fernet
(AES-128-CBC and HMAC-SHA256) with a key from scrypt (n = 2^15, r = 8, p = 1; RFC 7914) of the passphrase and a random
salt.
"""

from __future__ import annotations

import base64
import json
import os

from cryptography.fernet import Fernet, InvalidToken
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from ...proto.errors import FarflungError
from ..store.store import Store
from .authority import Authority, authority_of, fingerprint_of, make_authority

PASSPHRASE = "FARFLUNG_IDENTITY_PASSPHRASE"
_KEY, _OLD = "identity", "authority"
_SHORTEST = 12
_HINT = f"export {PASSPHRASE}=... before starting, the same for every coordinator of the run"


def is_older(store: Store) -> bool:
    """Whether the database has the identity of an earlier version, and none yet of this one."""
    return store.get(_OLD) is not None and store.get(_KEY) is None


def check_passphrase(store: Store) -> None:
    """FarflungError: there is no passphrase, or it does not open the key in the database."""
    stored = store.get(_KEY)
    _unseal(store, stored) if stored is not None else _passphrase()


def shared_authority(store: Store) -> Authority:
    """The CA in the database, made and sealed there by the first coordinator that leads. Errors as in
    ``check_passphrase``."""
    stored = store.get(_KEY)
    if stored is not None:
        return _unseal(store, stored)
    made, salt = make_authority(), os.urandom(16)
    sealed = {"certificate": made.certificate.decode(), "nodes": made.nodes.decode(), "salt": salt.hex()}
    box = _box(_passphrase(), salt)
    sealed |= {"key": box.encrypt(made.key).decode(), "nodes_key": box.encrypt(made.nodes_key).decode()}
    store.put(_KEY, json.dumps(sealed))
    return made


def _unseal(store: Store, stored: str) -> Authority:
    found = json.loads(stored)
    try:
        box = _box(_passphrase(), bytes.fromhex(found["salt"]))
        key, nodes_key = (box.decrypt(found[name].encode()) for name in ("key", "nodes_key"))
    except InvalidToken:
        message = f"{PASSPHRASE} does not open the CA key in {store.name}: it was sealed with another"
        raise FarflungError(message, _HINT) from None
    return authority_of(found["certificate"].encode(), key, found["nodes"].encode(), nodes_key)


def _passphrase() -> str:
    passphrase = os.environ.get(PASSPHRASE, "")
    if len(passphrase) < _SHORTEST:
        message = f"the key of the run's CA is sealed in the database, and {PASSPHRASE} has no {_SHORTEST} characters"
        raise FarflungError(message, _HINT)
    return passphrase


def shared_fingerprint(store: Store) -> bytes:
    """The CA's fingerprint, which needs no passphrase. FarflungError when no coordinator has led yet."""
    stored = store.get(_KEY)
    if stored is None:
        raise FarflungError(f"the run in {store.name} has not started yet", "start it: farflung coordinator start JOB")
    return fingerprint_of(json.loads(stored)["certificate"].encode())


def _box(passphrase: str, salt: bytes) -> Fernet:
    key = Scrypt(salt=salt, length=32, n=2**15, r=8, p=1).derive(passphrase.encode())
    return Fernet(base64.urlsafe_b64encode(key))
