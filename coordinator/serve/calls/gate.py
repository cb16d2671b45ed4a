"""Admits a call by its session or ticket before its message is read.

Both are in the call's metadata, which gRPC limits to 16 KiB. A message may have 8 MiB, which gRPC holds in memory until
the call ends; so messages of callers without a valid session or ticket are never read. Streaming calls check the
session themselves, before their first read.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import grpc.aio

from .... import __version__
from ....proto import control_pb2 as pb
from ....proto.connections import rpc
from ....proto.errors import FarflungError, Refused

_SERVICE = "/farflung.Coordinator/"
_UNARY: dict[str, Any] = {"Join": pb.JoinReply, "Status": pb.StatusReply, "Command": pb.CommandReply}
_STREAMED: dict[str, Any] = {"Profile": pb.ProfilePart, "Generate": pb.GenerateReply}
BY_TICKET = frozenset(_UNARY) | frozenset(_STREAMED)
BY_SESSION = frozenset({"Describe", "Fetch", "Held"})


Handler = Any  # grpc.RpcMethodHandler


class Gate(grpc.aio.ServerInterceptor):  # type: ignore[type-arg, unused-ignore]
    """``knows(name, session, secret)``: whether these belong to a session of the run; ``check(ticket)``: raises Refused
    for an invalid ticket."""

    def __init__(self, knows: Callable[[str, str, str], bool], check: Callable[[str], object]) -> None:
        self._knows, self._check = knows, check

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any
    ) -> Handler:
        """The method's own handler, or one that answers without reading."""
        method = str(handler_call_details.method).removeprefix(_SERVICE)
        metadata = handler_call_details.invocation_metadata
        if method in BY_SESSION:
            found = rpc.parse_session(metadata)
            if found is None or not self._knows(*found):
                return _ending(rpc.no_session(found))
        elif method in BY_TICKET:
            try:
                self._check(_ticket(metadata))
            except FarflungError as error:
                return _refusing(method, error.told)
        return await continuation(handler_call_details)


def _ticket(metadata: Any) -> str:
    found = rpc.parse_ticket(metadata)
    if found is None:
        message = f"the call shows no ticket, as those of earlier versions; the coordinator has farflung {__version__}"
        hint = f"install the same version on both machines: pip install farflung=={__version__}"
        raise Refused(message, hint)
    return found


def _refusing(method: str, told: str) -> Handler:
    """A handler whose answer is a refusal."""
    if method in _UNARY:
        reply = _UNARY[method](refused=told)

        async def answer(requests: object, context: object) -> Any:
            return reply

        return grpc.stream_unary_rpc_method_handler(answer, None, _serialized)

    async def answers(requests: object, context: object) -> AsyncIterator[Any]:
        yield _STREAMED[method](refused=told)

    return grpc.stream_stream_rpc_method_handler(answers, None, _serialized)


def _ending(why: str) -> Handler:
    """A handler that ends the call."""

    async def end(requests: object, context: Any) -> AsyncIterator[Any]:
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, why)
        yield  # never reached: abort raises

    return grpc.stream_stream_rpc_method_handler(end, None, _serialized)


def _serialized(message: Any) -> bytes:
    return bytes(message.SerializeToString())
