"""Headers of messages with contributions and results; the payload travels beside the header."""

from __future__ import annotations

from ....proto import data_pb2
from .messages import Contribution, Result
from .payloads import received


def contribution_header(
    section: str, round: int, part: int, chain: int, sent: Contribution, *, of: int | None = None, request: int = 0
) -> data_pb2.Header:
    """The header of a contribution. ``chain``: the chain h after the round before. ``of``: the contribution's member
    (index), if another one passes it on. ``request``: the number of the request to ``RoundLog`` that it answers."""
    body = data_pb2.Contribution(
        section=section,
        round=round,
        part=part,
        chain=chain,
        sizes=sent.sizes,
        of=of,
        request=request,
        signature=sent.signature,
        certificate=sent.certificate,
    )
    return data_pb2.Header(kind=data_pb2.CONTRIBUTION, contribution=body)


def received_contribution(body: data_pb2.Contribution, payload: memoryview) -> Contribution:
    """The contribution that ``contribution_header`` and its payload describe."""
    sent = received(payload, body.sizes)
    return Contribution(sent.payload, sent.sizes, sent.digest, body.signature, body.certificate)


def result_header(section: str, round: int, chain: int, result: Result, request: int = 0) -> data_pb2.Header:
    """The header of a result. ``chain``: the chain h after the round before. ``request``: the number of the request to
    ``RoundLog`` that it answers."""
    body = data_pb2.Result(
        section=section,
        round=round,
        part=result.part,
        chain=chain,
        sizes=result.sizes,
        contributors=result.contributors,
        digests=result.digests,
        error=result.error,
        factors=result.factors,
        request=request,
        signature=result.signature,
        certificate=result.certificate,
    )
    return data_pb2.Header(kind=data_pb2.RESULT, result=body)


def received_result(body: data_pb2.Result, payload: memoryview) -> Result:
    """The result that ``result_header`` and its payload describe."""
    sent = received(payload, body.sizes)
    return Result(
        body.part,
        tuple(body.contributors),
        tuple(body.digests),
        sent.payload,
        sent.sizes,
        sent.digest,
        body.error,
        tuple(body.factors),
        body.signature,
        body.certificate,
    )
