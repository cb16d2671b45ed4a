"""A state comes in pieces from several holders; who stalls, dies or lies is left, and nothing comes twice for it."""

import collections

import numpy as np
import pytest
import torch
from header_bodies import body_of

from farflung.node.state.loss_scale import LossScale
from farflung.node.state.transfers.fetching import StateFetch
from farflung.node.state.transfers.serving import StateServer
from farflung.node.state.transfers.transfer_plan import (
    DIGESTS,
    PIECE,
    STALL_SECONDS,
    STRIKES,
    Fetching,
    Piece,
    piece_at,
    pieces_of,
)
from farflung.proto import data_pb2

SIZE = 40 * PIECE + 12


def fetching(holders="abc", size=SIZE):
    return Fetching({"w": size}, {"w": list(holders)}, "me")


def serve(machine, now, silent=(), digest=lambda piece: 7 + piece.offset):
    """Answer everything that is asked; the pieces that each holder served."""
    served = collections.defaultdict(list)
    while asked := machine.ask(now):
        for name, piece in asked:
            if name in silent:
                continue
            if piece == DIGESTS:
                everything = [Piece("w", at, min(PIECE, SIZE - at)) for at in range(0, SIZE, PIECE)]
                machine.digests(name, {one: 7 + one.offset for one in everything}, now)
            else:
                machine.came(name, piece, digest(piece), now)
                served[name].append(piece)
    return served


def test_a_piece_is_found_by_its_offset():
    for size in (1, PIECE, PIECE + 1, 3 * PIECE + 12):
        cut = pieces_of("w", size)
        assert [piece_at("w", size, piece.offset) for piece in cut] == cut
        assert not any(piece_at("w", size, at) for at in (-PIECE, -1, 1, PIECE - 1, size, len(cut) * PIECE))
    assert pieces_of("w", 0) == [] and piece_at("w", 0, 0) is None


def test_what_is_reached_is_what_is_not_missing():
    machine = fetching("abcd")
    expected = {piece: 7 + piece.offset for piece in machine.missing}
    for step in range(40):
        for name, piece in machine.ask(float(step)):
            if piece == DIGESTS:
                machine.digests(name, expected, float(step))
            else:
                lies = name == "d" and piece.offset > 8 * PIECE
                machine.came(name, piece, 1 if lies else expected[piece], float(step))
            here = SIZE - sum(one.length for one in machine.missing)
            assert machine.reached == (here, SIZE)
    assert machine.done


def test_several_holders_serve_different_ranges():
    machine = fetching()
    served = serve(machine, 1.0)
    assert machine.done and not machine.failure
    assert set(served) == set("abc")
    offsets = [piece.offset for pieces in served.values() for piece in pieces]
    assert sorted(offsets) == list(range(0, SIZE, PIECE))  # each once


def test_joiners_begin_with_different_holders():
    first = {Fetching({"w": SIZE}, {"w": list("abc")}, me).ask(0.0)[0][0] for me in ("n1", "n2", "n3")}
    assert first == set("abc")


def test_a_holder_that_stalls_is_left_where_it_was():
    machine = fetching("ab")
    before = serve(machine, 1.0, silent="b")
    waiting = {piece.offset for piece in machine.missing}
    assert before["a"] and waiting and not machine.done
    assert serve(machine, 1.0 + 0.9 * STALL_SECONDS, silent="b") == {}  # it may only be slow
    after = serve(machine, 1.0 + 1.1 * STALL_SECONDS, silent="b")
    assert machine.done
    assert {piece.offset for piece in after["a"]} == waiting  # what had come does not come again
    [(name, why), *_] = machine.troubles
    assert name == "b" and "sent nothing for" in why


def test_a_slow_holder_has_more_patience():
    machine, now = fetching("a"), 0.0
    for _ in range(20):
        asked = [piece for _, piece in machine.ask(now) if piece != DIGESTS]
        now += 0.9 * STALL_SECONDS
        for piece in asked[:1]:
            machine.came("a", piece, 1, now)
    machine.ask(now + 2 * STALL_SECONDS)
    assert machine.troubles == []


def test_a_holder_that_comes_back_is_asked_again():
    machine = fetching("a")
    machine.ask(0.0)
    machine.lost("a", "broke its connection", 1.0)
    assert machine.ask(1.5) == []
    serve(machine, 2.5)
    assert machine.done


def test_nobody_answers_and_each_is_named():
    machine, now = fetching("ab"), 0.0
    while not machine.failure:
        machine.ask(now)
        now += 1.0
        assert now < 600
    assert machine.failure.count("sent nothing for") == 2
    assert sum(name == "a" for name, _ in machine.troubles) == STRIKES


@pytest.mark.parametrize("early", [True, False])
def test_wrong_bytes_are_fetched_again_and_their_sender_left(early):
    """Its own digest fits them; the digests that the others give do not."""
    machine = fetching()
    everything = {Piece("w", at, min(PIECE, SIZE - at)): 7 + at for at in range(0, SIZE, PIECE)}
    said = {"a": dict.fromkeys(everything, 99), "b": everything, "c": everything}
    count = 0
    while asked := machine.ask(1.0):
        if early:
            for name, known in said.items():
                machine.digests(name, known, 1.0)
        for name, piece in asked:
            if piece != DIGESTS:
                assert machine.came(name, piece, said[name][piece], 1.0) or name == "a"
                count += 1
        if not early and not machine.missing:
            for name, known in said.items():
                machine.digests(name, known, 1.0)
    assert machine.done
    assert [name for name, _ in machine.liars] == ["a"]
    assert {sender for sender, _ in machine._came.values()} <= {"b", "c"}
    assert count > len(everything)


class Peers:
    """Servers and one joiner without a network: messages lie in a list until they are carried."""

    def __init__(self, states, wanted, tamper=lambda sender, header, payload: payload):
        self.now, self.waiting, self.tamper = 0.0, [], tamper
        self.refused, self.told, self.bytes, self.progress = [], [], collections.Counter(), []
        self.servers = {}
        for name, held in states.items():
            self.servers[name] = StateServer(self._sender(name))
            self.servers[name].open(held)
        self.fetch = StateFetch(
            self._sender("me"),
            lambda node, why, points: self.refused.append((node, why)),
            self.told.append,
            "me",
            wanted,
            {name: list(states) for name in wanted},
            moments=True,
            progress=self.progress.append,
            clock=lambda: self.now,
        )

    def _sender(self, sender):
        def send(to, header, payload, priority):
            assert priority == 2
            self.waiting.append((sender, to, header, bytes(payload)))

        return send

    def run(self, seconds=0.1):
        for _ in range(10_000):
            if self.fetch.done:
                return
            self.fetch.work(set())
            while self.waiting:
                sender, to, header, payload = self.waiting.pop(0)
                if to in self.servers:
                    self.servers[to].request(sender, header.state_request, payload)
                    continue
                payload = self.tamper(sender, header, payload)
                if payload is not None:
                    self.bytes[sender] += len(payload)
                    self.fetch.answer(sender, header.state, np.frombuffer(payload, np.uint8).copy())
            self.now += seconds
        raise AssertionError("it does not end")


def states(numel=300_000, names="abc"):
    random = torch.Generator().manual_seed(5)
    true = {
        name: {prefix: torch.randn(shape, generator=random) for prefix in ("", "optimizer.m.")}
        for name, shape in {"w": (3, numel // 3), "b": (7,), "s": ()}.items()
    }
    held = {
        node: {name: {prefix: one.clone() for prefix, one in vectors.items()} for name, vectors in true.items()}
        for node in names
    }
    wanted = {
        name: {prefix: torch.zeros_like(one) for prefix, one in vectors.items()} for name, vectors in true.items()
    }
    return true, held, wanted


def same(one, other):
    return all(torch.equal(one[name][prefix], other[name][prefix]) for name in one for prefix in one[name])


def test_bits_are_the_same_and_come_once():
    true, held, wanted = states()
    peers = Peers(held, wanted)
    peers.run()
    assert same(true, wanted)
    size = sum(one.numel() * 4 for vectors in true.values() for one in vectors.values())
    digests = 3 * 8 * (-(-2 * 300_000 * 4 // PIECE) + 2)
    assert sum(peers.bytes.values()) == size + digests and len(peers.bytes) == 3
    assert peers.told == [] and peers.refused == []


def test_how_much_is_here_is_told_of_what_takes_long():
    true, held, wanted = states()
    peers = Peers(held, wanted)
    peers.run(seconds=1.5)
    size = sum(one.numel() * 4 for vectors in true.values() for one in vectors.values())
    assert peers.progress and {event["of"] for event in peers.progress} == {size}
    counts = [event["done"] for event in peers.progress]
    assert counts == sorted(counts) and 0 < counts[0] <= counts[-1] <= size
    assert peers.progress[0]["what"] == "fetching the state"


def test_damaged_and_cut_pieces_are_fetched_again():
    true, held, wanted = states()
    done = []

    def tamper(sender, header, payload):
        if body_of(header).name == "w" and body_of(header).offset in (0, PIECE) and body_of(header).offset not in done:
            done.append(body_of(header).offset)
            return payload[:-4] if body_of(header).offset else bytes([payload[0] ^ 1]) + payload[1:]
        return payload

    peers = Peers(held, wanted, tamper)
    peers.run()
    assert same(true, wanted) and len(done) == 2
    assert sum("damaged" in told for told in peers.told) == 2


def test_a_liar_is_named_and_left():
    true, held, wanted = states()
    held["b"]["w"][""] += 1
    peers = Peers(held, wanted)
    peers.run()
    assert same(true, wanted)
    assert [node for node, _ in peers.refused] == ["b"] and "other values of w" in peers.refused[0][1]


def test_a_source_that_falls_silent_costs_seconds_and_no_byte_twice():
    true, held, wanted = states(1_000_000, "ab")
    size = sum(one.numel() * 4 for vectors in true.values() for one in vectors.values())
    peers = Peers(held, wanted)
    peers.tamper = lambda sender, header, payload: None if sender == "a" and peers.bytes["a"] > size * 0.3 else payload
    peers.run()
    assert same(true, wanted)
    assert sum(peers.bytes.values()) < 1.01 * size
    assert peers.now < 2 * STALL_SECONDS
    assert any("a sent nothing for" in told for told in peers.told)


def test_nonsense_is_refused():
    _, held, wanted = states()
    fetch = Peers(held, wanted).fetch
    for sent in (
        data_pb2.State(name="other"),
        data_pb2.State(name="w", offset=5),
        data_pb2.State(name="w", offset=1 << 40),
    ):
        with pytest.raises(ValueError, match=r"not asked for|where none begins"):
            fetch.answer("a", sent, np.zeros(8, np.uint8))
    with pytest.raises(ValueError, match="not asked for"):
        fetch.answer("stranger", data_pb2.State(name="w"), np.zeros(8, np.uint8))
    server = StateServer(lambda *_: None)
    with pytest.raises(ValueError, match="wait already"):
        for _ in range(10_000):
            server.request("x", data_pb2.StateRequest(name="w"), b"")


@pytest.mark.parametrize("same", [0, 3, 10])
def test_pieces_that_are_here_already_are_not_fetched_again(same):
    """What a fetch of before has brought: the holders' digests say what of it still is as they have it."""
    there = torch.arange(10 * PIECE // 4, dtype=torch.float32)
    here = there.clone()
    for piece in range(same, 10):
        here[piece * PIECE // 4] += 1.0
    sent, now = [], 1.0
    servers = {}

    def send(to, header, payload, priority):
        sent.append((to, header, payload))

    fetch = StateFetch(
        send,
        lambda *_: None,
        lambda _: None,
        "me",
        {"w": {"": here}},
        {"w": ["a", "b"]},
        moments=False,
        clock=lambda: now,
        kept=True,
    )
    for name in "ab":

        def answer(to, header, payload, priority, name=name):
            fetch.answer(name, header.state, np.frombuffer(bytearray(payload), np.uint8))

        servers[name] = StateServer(answer)
        servers[name].open({"w": {"": there}})
    fetched = 0
    while not fetch.done:
        fetch.work(set())
        asked, sent[:] = list(sent), []
        assert asked and not fetch.failure
        for to, header, payload in asked:
            fetched += bool(body_of(header).name)
            servers[to].request("me", header.state_request, payload)
    assert fetched == 10 - same and torch.equal(here, there)


def test_who_says_no_digests_is_asked_for_pieces_all_the_same():
    machine = Fetching({"w": 100}, {"w": ["a"]}, "me", compares=True)
    assert [piece for _, piece in machine.ask(0.0)] == [DIGESTS]
    machine.lost("a", "its connection broke", 1.0)
    assert not machine.ask(1.5)
    assert {piece.name for _, piece in machine.ask(1.0 + STALL_SECONDS)} == {"", "w"}


def test_one_holder_that_lies_about_the_loss_scale_is_outvoted():
    """A wrong number of dropped steps would make the joiner's optimiser steps others than the group's."""

    def tamper(sender, header, payload):
        if sender == "c":
            header.state.loss_scale, header.state.dropped_steps = 2.0**-14, 2**32 - 1
        return payload

    true, here = torch.arange(9 * PIECE // 4, dtype=torch.float32), torch.zeros(9 * PIECE // 4)
    peers = Peers({name: {"w": {"": true}} for name in "cab"}, {"w": {"": here}}, tamper)
    for server in peers.servers.values():
        server.open({"w": {"": true}}, LossScale(2.0**10, 3, 2))
    assert peers.fetch.loss_scale is None
    peers.run()
    assert torch.equal(here, true) and peers.fetch.loss_scale == LossScale(2.0**10, 3, 2)
