import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.compress import CodecError, decode, make
from farflung.compress.aqsgd import Receiver, Sender

SPEC = "aqsgd:bits=4"


def visit(sender: Sender, receiver: Receiver, token: object, ids: list[int], x: torch.Tensor) -> torch.Tensor:
    got = receiver.receive(token, sender.encode(token, ids, x), x.shape)
    while got.missing:
        got = receiver.receive(token, sender.resend(token, got.missing))
    sender.commit(token)
    receiver.commit(token)
    assert got.values is not None
    return got.values


def test_a_first_visit_is_whole_and_later_ones_are_changes() -> None:
    sender, receiver = Sender(SPEC), Receiver(SPEC)
    x = torch.randn(4, 8, 32)
    first = visit(sender, receiver, 0, [1, 2, 3, 4], x)
    assert first.shape == x.shape and first.dtype == x.dtype
    assert (first - x).norm() < 0.02 * x.norm()
    before = len(sender.encode("again", [1, 2, 3, 4], x))
    assert before < 0.6 * len(Sender(SPEC).encode(0, [1, 2, 3, 4], x))
    moved = x + 0.01 * torch.randn_like(x)
    for turn in range(1, 4):
        got = visit(sender, receiver, turn, [1, 2, 3, 4], moved)
    assert (got - moved).norm() < 0.005 * moved.norm()
    assert sender.counters.hits == 16 and sender.counters.nacks == 0


def test_the_ends_are_equal_bit_for_bit() -> None:
    sender, receiver = Sender(SPEC), Receiver(SPEC)
    for turn in range(5):
        visit(sender, receiver, turn, [7, 9], torch.randn(2, 100) * 10.0 ** (turn - 2))
    for sample in (7, 9):
        a, b = sender._entries[sample], receiver._entries[sample]
        assert a.version == b.version and a.checksum == b.checksum and torch.equal(a.value, b.value)


def test_a_retry_gives_the_same_bytes_and_is_applied_once() -> None:
    sender, receiver = Sender(SPEC), Receiver(SPEC)
    x = torch.randn(3, 64)
    visit(sender, receiver, 0, [1, 2, 3], x)
    y = x + 0.1 * torch.randn(3, 64)
    blob = sender.encode(1, [1, 2, 3], y)
    assert sender.encode(1, [1, 2, 3], y) == blob
    one, two = receiver.receive(1, blob), receiver.receive(1, blob)
    assert one.values is not None and two.values is not None and torch.equal(one.values, two.values)


def test_an_unknown_sample_is_asked_for_and_sent_whole() -> None:
    sender, receiver = Sender(SPEC), Receiver(SPEC)
    x = torch.randn(3, 64)
    visit(sender, receiver, 0, [1, 2, 3], x)
    receiver.forget(2)
    got = receiver.receive(1, sender.encode(1, [1, 2, 3], x))
    assert got.values is None and got.missing == (2,)
    got = receiver.receive(1, sender.resend(1, got.missing))
    assert got.values is not None and (got.values - x).norm() < 0.02 * x.norm()
    sender.commit(1)
    receiver.commit(1)
    assert sender.counters.nacks == 1 and receiver.nacks == 1
    assert sender._entries[2].checksum == receiver._entries[2].checksum


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(["ok", "lost", "late", "restart", "forget", "dropped"]), min_size=1, max_size=12))
def test_nothing_that_happens_to_one_end_is_undetected(events: list[str]) -> None:
    torch.manual_seed(0)
    sender, receiver = Sender(SPEC), Receiver(SPEC)
    for turn, event in enumerate(events):
        x = torch.randn(2, 48)
        if event == "restart":
            receiver = Receiver(SPEC)
        elif event == "forget":
            sender.forget(1)
        blob = sender.encode(turn, [1, 2], x)
        if event == "lost":
            sender.rollback(turn)
            continue
        got = receiver.receive(turn, blob)
        if got.missing:
            got = receiver.receive(turn, sender.resend(turn, got.missing))
        assert got.values is not None
        for row, sample in enumerate((1, 2)):
            assert torch.equal(got.values[row].to(torch.bfloat16), sender._staged[turn][sample].value)
        if event != "late":
            receiver.commit(turn)
        if event != "dropped":
            sender.commit(turn)
        else:
            sender.rollback(turn)


def test_the_same_sample_twice_in_a_microbatch() -> None:
    sender, receiver = Sender(SPEC), Receiver(SPEC)
    x = torch.randn(2, 32)
    got = visit(sender, receiver, 0, [5, 5], x)
    assert (got - x).norm() < 0.02 * x.norm()
    visit(sender, receiver, 1, [5, 5], x)
    assert sender._entries[5].checksum == receiver._entries[5].checksum


def test_memory_is_bounded_and_counted() -> None:
    sender, receiver = Sender(SPEC, max_bytes=10 * 128), Receiver(SPEC, max_bytes=5 * 128)
    for turn in range(30):
        visit(sender, receiver, turn, [turn % 15], torch.randn(1, 64))
    assert sender.bytes <= 1280 and len(sender) == 10
    assert receiver.bytes <= 640 and len(receiver) == 5


def test_a_verdict_where_aqsgd_gains_nothing() -> None:
    sender = Sender(SPEC)
    for sample in range(300):
        sender.encode(sample, [sample], torch.randn(1, 16))
        sender.commit(sample)
    assert "seen before" in (sender.verdict() or "")
    assert sender.verdict() is None, "no question is answered twice with the same samples"
    for _ in range(2):
        for sample in range(300):
            sender.encode(sample, [sample], torch.randn(1, 16))
            sender.commit(sample)
    assert "energy" in (sender.verdict() or "")


def test_strangers_bytes_change_nothing() -> None:
    sender, receiver = Sender(SPEC), Receiver(SPEC)
    blob = sender.encode(0, [1], torch.randn(1, 64))
    for bad in (blob[:-1], blob + b"x", b"", blob[:20]):
        with pytest.raises(CodecError):
            receiver.receive(0, bad)
    with pytest.raises(CodecError):
        receiver.receive(0, make("aqsgd:bits=4").encode(torch.randn(1, 64)))
    with pytest.raises(CodecError):
        decode(blob)
    with pytest.raises(CodecError):
        receiver.receive(0, blob, (2, 64))
    with pytest.raises(CodecError):
        sender.encode(1, [1], torch.tensor([[float("nan")]]))
    assert len(receiver) == 0 and not receiver._staged


@pytest.mark.parametrize("bits", range(2, 9))
@pytest.mark.parametrize("scale", [2.0**-40, 1.0, 2.0**40])
def test_changes_scale_exactly(bits: int, scale: float) -> None:
    spec = f"aqsgd:bits={bits}"
    x, y = torch.randn(1, 100), torch.randn(1, 100)
    values = []
    for factor in (1.0, scale):
        sender, receiver = Sender(spec), Receiver(spec)
        visit(sender, receiver, 0, [1], x * factor)
        values.append(visit(sender, receiver, 1, [1], y * factor))
    assert torch.equal(values[0] * scale, values[1])
