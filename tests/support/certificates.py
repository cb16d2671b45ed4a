"""Identities of a run with TLS, for members in one process."""

from farflung.coordinator.trust.authority import make_authority
from farflung.node.device.identity import Identity, certificate_request, make_key


def identities(names, run="run"):
    """What each of these nodes has after it has joined."""
    authority, made = make_authority(), {}
    for name in names:
        key = make_key()
        certificate, _ = authority.sign(certificate_request(key, name), name)
        made[name] = Identity(run, key, certificate, authority.nodes)
    return made
