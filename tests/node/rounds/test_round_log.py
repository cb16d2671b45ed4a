"""What a member sends to those that follow it."""

from types import SimpleNamespace

from header_bodies import body_of

from farflung.node.context import BULK
from farflung.node.rounds.log import RoundLog
from farflung.node.rounds.protocol.messages import Result
from farflung.proto.data_pb2 import Kind


def test_a_round_overtakes_the_pieces_of_a_snapshot():
    """Behind the pieces that are under way it would take longer than the group takes to make the next."""
    kept = SimpleNamespace(round=7, chain=5, results={0: Result(0, (0,), (1,), (3,), b"abc")}, contributions={})
    link, sent = SimpleNamespace(rounds=SimpleNamespace(log=[kept], applied=7)), []
    log = RoundLog({"s": link}, lambda to, header, payload, priority: sent.append((to, header, priority)))
    log.request("c", 7, 3)
    assert [(to, header.kind) for to, header, _ in sent] == [("c", Kind.RESULT), ("c", Kind.ROUND_END)]
    assert {body_of(header).request for _, header, _ in sent} == {3}  # whoever asked knows which answer it is
    assert len({priority for *_, priority in sent}) == 1  # the end stays behind the results
    assert sent[0][2] < BULK
