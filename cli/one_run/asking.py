"""Calls a running coordinator, or reads the state folder instead."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from ...proto.errors import FarflungError

if TYPE_CHECKING:
    from ...proto.words.link import Link

_ANSWER_SECONDS = 10.0


def operating(target: str) -> AbstractContextManager["Link"]:
    """An operator's link: the given one, or for a state folder one that is made for this command and revoked after
    it."""
    from ...coordinator.trust import links
    from ...proto.words.link import parse_link

    return nullcontext(parse_link(target)) if target.startswith("farflung:") else links.operating(target)


def status_record(target: str) -> dict[str, Any]:
    """The status of a run, from its link or from its state folder."""
    from ...coordinator.observe.status import read_status
    from .linkfile import link_text

    target = link_text(target)
    return ask_status(target) if target.startswith("farflung:") else read_status(target)


def ask_status(text: str) -> dict[str, Any]:
    """The status as a running coordinator answers it."""
    import json

    from ...proto.control_pb2 import StatusRequest
    from ...proto.words.border import harmless_values
    from ...proto.words.link import parse_link

    link = parse_link(text)
    record: dict[str, Any] = json.loads(ask(link, "Status", StatusRequest(run=link.run, ticket=link.ticket)).status)
    return dict(harmless_values(record))


def ask(link: "Link", method: str, request: Any) -> Any:
    """A running coordinator's answer. Raises its refusal, or the reason why it did not answer."""
    from ...proto.errors import Refused
    from ...proto.words.fields import checked

    with calling(link) as stub:
        reply = checked(getattr(stub, method)(request, timeout=_ANSWER_SECONDS))
    if reply.refused:
        raise Refused.of(reply.refused)
    return reply


@contextmanager
def calling(link: "Link") -> Iterator[Any]:
    """The stub of a running coordinator. An error where it does not answer."""
    import grpc

    from ...node.join import find
    from ...proto.connections import rpc
    from ...proto.words.border import printable

    with rpc.blocking_coordinator_channel(link.address, find(link).pinned) as channel:
        try:
            yield rpc.coordinator_stub(channel)
        except grpc.RpcError as error:
            words = printable((isinstance(error, grpc.Call) and error.details()) or str(error))
            message = f"the coordinator at {link.address} did not answer: {words}"
            raise FarflungError(message, "copy the whole link again; is it still running?") from error
