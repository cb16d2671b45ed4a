"""A node that loads a stage hands on what it has, and says of the rest that it is coming."""

import torch

from farflung.node.state.transfer import StateServer
from farflung.node.state.transfer_plan import STALL_SECONDS, STRIKES, Fetching
from farflung.proto import data_pb2


def request(name, number=7):
    return data_pb2.Header(kind=data_pb2.STATE_REQUEST, text=name, length=8, request=number)


def test_parameters_go_on_as_they_come():
    sent = []
    server = StateServer(lambda to, header, payload, priority: sent.append((to, header.kind, header.text)))
    server.request("b", request("w"), b"")
    server.load({"w": {"": torch.ones(2)}, "v": {"": torch.ones(2)}}, ["w", "v"])
    server.request("c", request("v", 8), b"")
    server.request("c", data_pb2.Header(kind=data_pb2.STATE_REQUEST, request=8), b"w\nv")
    assert not sent
    server.tick(100.0)
    server.tick(100.5)
    assert sorted(sent) == [(name, data_pb2.STATE_COMING, "") for name in "bc"]
    sent.clear()
    server.ready("w")
    assert sent == [("b", data_pb2.STATE, "w")]
    server.ready("v")
    assert [(to, text) for to, _, text in sent] == [("b", "w"), ("c", "v"), ("c", "")]
    server.tick(200.0)
    assert len(sent) == 3, "nobody waits any more"


def test_a_source_that_loads_for_an_hour_is_not_given_up():
    fetch = Fetching({"w": 100}, {"w": ["a"]}, "me")
    assert len(fetch.ask(0.0)) == 2
    for second in range(1, 3600):
        fetch.coming("a", float(second))
        assert not fetch.ask(float(second)) and not fetch.troubles
    for second in range(3600, 3600 + 60 * STRIKES):
        fetch.ask(float(second))
    assert fetch.failure and fetch.troubles, f"and one that falls silent is, after {STALL_SECONDS} s and more"
