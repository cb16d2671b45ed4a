"""Admits nodes; a method for each condition of a join: the versions, the run, the name, the key, the ticket, the
address."""

from __future__ import annotations

import json
import math
import secrets
import time
from dataclasses import dataclass
from pathlib import Path

from google.protobuf.json_format import MessageToDict

from .... import __version__
from ....job.shared import for_nodes
from ....proto import PROTOCOL
from ....proto import control_pb2 as pb
from ....proto.errors import FarflungError, Refused
from ....proto.words import names
from ....proto.words.border import printable
from ...run.nodes.second import check_alone
from ...run.run import Run
from ...store.rows import NodeRow
from ...trust.authority import NODE_LIFE, Authority
from ...trust.clocks import check_clock
from ...trust.requests import public_key_digest, requested
from ...trust.tickets import check_joining, digest
from .dial_back import Network, caller_of, dial_back


@dataclass(frozen=True)
class Identity:
    """``run``: the run's id; ``authority``: its CA, None without TLS; ``state``: the state folder.

    ``life``: seconds for which a node's certificate is valid.
    """

    run: str
    authority: Authority | None
    state: Path
    life: float = NODE_LIFE
    dial_back: tuple[Network, ...] = ()
    """Networks in which nodes may be dialled back, in addition to the address from which a join comes."""


class Joining:
    """Admits nodes. A refusal is a Refused or NotNow with a hint."""

    def __init__(self, run: Run, identity: Identity) -> None:
        self._run, self._identity, self._store = run, identity, run.context.store
        self._joining: set[str] = set()
        """Names of joins that wait for their dial-back."""

    async def join(self, request: pb.JoinRequest, peer: str) -> pb.JoinReply:
        """Admit a node that calls from ``peer``, or say why not."""
        now = time.time()
        self._check_versions(request)
        self._check_run(request)
        name = self._name(request)
        key_hash = self._key(request, name, now)
        known = self._store.nodes.called(name)
        returns = known is not None and bool(key_hash) and (known.name, known.key_hash) == (name, key_hash)
        check_joining(self._store, request.ticket, now, take_use=False, returns=returns)
        if not returns:
            self._check_free(name, known)
        elif known is not None:
            asked = self._run.context.clock()
            await check_alone(lambda: self._run.lives(name, asked), name, known.address)
        self._joining.add(name)
        try:
            caller, insists = caller_of(peer), not request.may_dial_out
            reached = await dial_back(request.address, caller, insists, self._identity.dial_back)
        finally:
            self._joining.discard(name)
        if not returns:
            check_joining(self._store, request.ticket, now, take_use=True)
        certificate, authority = b"", self._identity.authority
        if authority is not None:
            certificate, _ = authority.sign(request.certificate_request, name, self._identity.life)
        session, secret = secrets.token_hex(8), secrets.token_urlsafe(24)
        row = NodeRow(
            name,
            session,
            digest(secret),
            key_hash,
            reached.address,
            _device(request.device),
            joined=now,
            dials_out=reached.dials_out,
            ticket=request.ticket.partition(".")[0],
        )
        self._run.admit(row)
        return self._welcome(row, secret, certificate)

    # ---- conditions ----------------------------------------------------------------------------

    def _check_versions(self, request: pb.JoinRequest) -> None:
        oldest = request.oldest_protocol or request.protocol
        if not oldest <= PROTOCOL <= request.protocol:
            speaks = str(request.protocol) if oldest == request.protocol else f"{oldest} to {request.protocol}"
            message = (
                f"the node speaks protocol {speaks} (farflung {request.version}), "
                f"the coordinator {PROTOCOL} (farflung {__version__})"
            )
            raise Refused(message, f"install the same version on both machines: pip install farflung=={__version__}")

    def _check_run(self, request: pb.JoinRequest) -> None:
        if request.run != self._identity.run:
            message = f"the link is for run {request.run}, this coordinator has run {self._identity.run}"
            raise Refused(message, "use the link that this coordinator printed")
        if self._run.is_over:
            raise Refused("the run is over", "start the coordinator again to go on with it")

    def _name(self, request: pb.JoinRequest) -> str:
        """The requested name, or a free one."""
        name = request.name or self._free_name()
        if why := names.mistake(name):
            raise Refused(why, f"--name: {names.RULE}")
        return name

    def _key(self, request: pb.JoinRequest, name: str, now: float) -> str:
        """Digest of the node's key, empty without TLS. Refused: its clock is wrong, or the key or name is evicted or
        drained."""
        key_hash = ""
        if self._identity.authority is not None:
            key_hash = public_key_digest(requested(request.certificate_request))
            try:
                check_clock(request.time, now, self._identity.life)
            except FarflungError as error:
                message = error.message.replace("this machine", "its machine")
                self._run.warn("", f"{name} cannot join: {message}")
                raise
        refusal = self._run.operator.handler.refusal(name, key_hash, self._run.state)
        if refusal:
            raise Refused(refusal, "ask the person at the coordinator")
        return key_hash

    def _check_free(self, name: str, known: NodeRow | None) -> None:
        """Refused: another node has this name, compared without case. With TLS a name belongs to its first key for
        ever."""
        hint = f"choose another name: --name {name}-2"
        called = known.name if known is not None else name
        in_now = {names.folded(other) for other in (*self._run.present, *self._joining)}
        # After a restart of the coordinator, a node may be in the run without having come back yet.
        is_in = known is not None and known.left_at is None and bool(known.key_hash)
        if is_in or names.folded(name) in in_now:
            raise Refused(f"a node named {called} is in the run already", hint)
        if known is not None and known.key_hash:
            message = f"the name {called} belongs to the node that had it first, and this is another key"
            raise Refused(message, f"{hint}; the node itself comes back with the --cache folder of its first join")

    def _free_name(self) -> str:
        known = (row.name for row in self._store.nodes.all())
        taken = {names.folded(name) for name in (*known, *self._joining)}
        number = 1
        while f"node-{number}" in taken:
            number += 1
        return f"node-{number}"

    # ---- the answer ----------------------------------------------------------------------------

    def _welcome(self, row: NodeRow, secret: str, certificate: bytes) -> pb.JoinReply:
        """The reply with the data that the node needs to take part."""
        context, identity = self._run.context, self._identity
        return pb.JoinReply(
            name=row.name,
            session=row.session,
            secret=secret,
            certificate=certificate,
            certificate_life=identity.life,
            protocol=PROTOCOL,
            authority=identity.authority.nodes if identity.authority else b"",
            job=for_nodes(context.job).model_dump_json(),
            facts=context.facts.model_dump_json(),
            term=context.term,
            dials_out=bool(row.dials_out),
        )


def _device(device: pb.Device) -> str:
    """A node's description of its device as JSON, cleaned for display and planning: impossible numbers become
    unknown."""
    for words in ("kind", "description"):
        setattr(device, words, printable(getattr(device, words)))
    for number in ("tflops", "upload_bps", "hours"):
        if not 0 <= getattr(device, number) < math.inf:
            device.ClearField(number)
    return json.dumps(MessageToDict(device, preserving_proto_field_name=True))
