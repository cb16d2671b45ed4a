"""What each string field of a message may contain; checked once, when the message arrives.

Every string field of control.proto and data.proto is in one of these tables; a test fails for a field that is not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from google.protobuf.message import Message

from .border import MOST_WORDS, SECRET, WORD, Hostile, address, harmless, matching, node_name, printable, told

M = TypeVar("M", bound=Message)

_NAMES = """JoinReply.name LinkMeasurement.from LinkMeasurement.to Sent.peer Evidence.peer Revoked.nodes
Member.name Shadow.node Shadow.like Holder.nodes View.restores ProfilePart.node GenerateReply.nodes
Score.node Judge.node Handover.giver Handover.taker Waits.peers"""
_ADDRESSES = "Member.address"
_IDS = """JoinReply.session Hello.session Member.session Trace.id SectionState.section Fingerprint.section
Unreadable.file"""
_SECRETS = "JoinReply.secret"
_SENTENCES = """Heartbeat.doing Evidence.why Warning.node Warning.message
Goodbye.why Leaving.why CaughtUp.failed Written.failed Unreadable.why TrialFailed.why
Flush.why Stop.why Leave.why Notice.message Advice.doing Advice.use Advice.better View.why StoreReply.refused
ProfilePart.told ProfilePart.missing ShardHeld.refused"""
_TOLD = """JoinReply.refused StatusReply.refused CommandReply.answer CommandReply.refused ProfilePart.refused
GenerateReply.refused"""
_TEXTS = "GenerateReply.text"
_READ_BY_OTHERS = """JoinReply.job JoinReply.facts StepDone.notes View.plan View.job Shard.meta StatusReply.status"""
"""JSON, whose reader checks it: `node.promises`, `coordinator.manifest` and so on."""
_COMPARED = """JoinRequest.version JoinRequest.run JoinRequest.ticket JoinRequest.name JoinRequest.address
Device.kind Device.description ArtifactName.name Artifact.name Range.name Shard.file ShardName.file StatusRequest.run
StatusRequest.ticket CommandRequest.run CommandRequest.ticket CommandRequest.command CommandRequest.node
CommandRequest.argument CommandRequest.by CommandRequest.why ProfileRequest.run ProfileRequest.ticket
GenerateRequest.run GenerateRequest.ticket GenerateRequest.prompt Header.run Header.session Contribution.section
Result.section Held.section ResultWanted.section ContributionWanted.section Mixing.section Audit.section
MaskKey.section Equivocation.section Receipts.section StateRequest.name State.name Greeting.run Greeting.name
Greeting.session Greeting.to Greeting.to_session"""
"""Fields that the code which handles the message looks up, compares with known values, or checks: they come with each
message of a round, or their errors are answered with a sentence of their own."""


READ_ELSEWHERE = frozenset(f"{_READ_BY_OTHERS} {_COMPARED}".split())
"""Fields that are not checked here."""
LINES = frozenset(f"{_TOLD} {_TEXTS}".split())
"""Fields that may have several lines."""


def _sentence(text: str) -> str:
    return printable(text, MOST_WORDS)


def _word(text: str) -> str:
    return matching(WORD, text, "name of a part")


def _secret(text: str) -> str:
    return matching(SECRET, text, "secret")


def _as_it_is(text: str) -> str:
    return text


KINDS: dict[str, Callable[[str], str]] = {
    name: kind
    for names, kind in (
        (_NAMES, node_name),
        (_ADDRESSES, address),
        (_IDS, _word),
        (_SECRETS, _secret),
        (_SENTENCES, _sentence),
        (_TOLD, told),
        (_TEXTS, harmless),
        (_READ_BY_OTHERS, _as_it_is),
        (_COMPARED, _as_it_is),
    )
    for name in names.split()
}


def checked(message: M) -> M:
    """The message, with every string field checked; sentences are made printable in place.

    Hostile: an invalid name, address or id.
    """
    kind_of = message.DESCRIPTOR.name
    for field, value in message.ListFields():
        if field.message_type is not None:
            for one in (value,) if isinstance(value, Message) else value:
                checked(one)
        elif field.type == field.TYPE_STRING:
            name = f"{kind_of}.{field.name}"
            try:
                if not isinstance(value, str):
                    for one in value:
                        KINDS[name](one)
                elif (as_it_must_be := KINDS[name](value)) is not value:
                    setattr(message, field.name, as_it_must_be)
            except Hostile as problem:
                raise Hostile(f"{name}: {problem.message}", problem.hint) from None
    return message
