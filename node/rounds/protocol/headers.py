"""Contributions and results as messages: what of them stands in the header; the payload goes beside it."""

from __future__ import annotations

from ....proto import data_pb2
from .messages import Contribution, Result
from .payloads import received


def contribution_header(
    section: str, round: int, part: int, chain: int, sent: Contribution, of: int | None = None
) -> data_pb2.Header:
    """Of a contribution. ``chain``: h of the round before. ``of``: whose it is, where another member hands it on."""
    header = data_pb2.Header(kind=data_pb2.CONTRIBUTION, section=section, round=round, part=part, chain=chain)
    header.sizes.extend(sent.sizes)
    header.signature, header.certificate = sent.signature, sent.certificate
    if of is not None:
        header.contributors.append(of)
    return header


def received_contribution(header: data_pb2.Header, payload: memoryview) -> Contribution:
    """What ``contribution_header`` and the payload say."""
    sent = received(payload, header.sizes)
    return Contribution(sent.payload, sent.sizes, sent.digest, header.signature, header.certificate)


def result_header(section: str, round: int, chain: int, result: Result) -> data_pb2.Header:
    """Of a result. ``chain``: h of the round before."""
    header = data_pb2.Header(kind=data_pb2.RESULT, section=section, round=round, part=result.part, chain=chain)
    header.contributors.extend(result.contributors)
    header.digests.extend(result.digests)
    header.sizes.extend(result.sizes)
    header.error = result.error
    header.factors.extend(result.factors)
    header.signature, header.certificate = result.signature, result.certificate
    return header


def received_result(header: data_pb2.Header, payload: memoryview) -> Result:
    """What ``result_header`` and the payload say."""
    sent = received(payload, header.sizes)
    who, digests, factors = tuple(header.contributors), tuple(header.digests), tuple(header.factors)
    signed = header.signature, header.certificate
    return Result(header.part, who, digests, sent.payload, sent.sizes, sent.digest, header.error, factors, *signed)
