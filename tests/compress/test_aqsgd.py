import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.compress import CodecError, decode, make
from farflung.compress.stateful.aqsgd import Receiver, Sender
from farflung.compress.stateful.disk_store import DiskStore

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


def test_a_receiver_that_began_anew_says_so_until_the_sender_knows() -> None:
    sender, receiver = Sender(SPEC), Receiver(SPEC)
    x = torch.randn(4, 64)
    visit(sender, receiver, 0, [1, 2, 3, 4], x)
    assert receiver.anew  # nothing has shown yet that the sender counts on this receiver's entries
    visit(sender, receiver, 1, [1, 2], x[:2])
    receiver.forget(3)
    assert receiver.receive(2, sender.encode(2, [3], x[2:3])).missing and not receiver.anew  # one entry, no new life
    sender.rollback(2)
    receiver = Receiver(SPEC)
    got = receiver.receive(3, sender.encode(3, [1], x[:1]))
    assert got.missing == (1,) and receiver.anew
    sender.forget_committed()
    receiver.receive(3, sender.resend(3, got.missing))
    assert not receiver.anew
    sender.commit(3)
    receiver.commit(3)
    visit(sender, receiver, 4, [2, 3, 4], x[1:])
    assert receiver.nacks == 1 and len(sender) == len(receiver) == 4
    receiver.clear()
    assert receiver.anew


@settings(max_examples=60)
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


def test_what_has_no_room_in_memory_lies_on_disk(tmp_path) -> None:
    disk = DiskStore(5 * (2 * 64 + 12), str(tmp_path))
    sender, receiver = Sender("aqsgd:bits=4", max_bytes=3 * 2 * 64, disk=disk), Receiver("aqsgd:bits=4")
    x = torch.randn(8, 64, generator=torch.Generator().manual_seed(1))
    for visit in range(3):
        for start in range(0, 8, 2):
            ids = [start, start + 1]
            blob = sender.encode((visit, start), ids, x[ids] + visit * 0.01)
            values = receiver.receive((visit, start), blob).values
            assert values is not None
            torch.testing.assert_close(values, x[ids] + visit * 0.01, rtol=0, atol=0.1)
            sender.commit((visit, start))
            receiver.commit((visit, start))
    assert sender.counters.samples == 24 and sender.counters.hits == 16  # 3 in memory and 5 on disk: all eight
    assert sender.bytes <= 3 * 2 * 64 and len(disk) == 5 and not list(tmp_path.iterdir())
    small = DiskStore(2 * 128, str(tmp_path))
    for sample in range(3):
        small.put(sample, bytes([sample]) * 128)
    assert small.take(0) is None and small.take(1) == bytes([1]) * 128 and len(small) == 1


def test_a_disk_that_takes_no_more_says_so(tmp_path, monkeypatch) -> None:
    def full(*arguments):
        raise OSError(28, "No space left on device")

    disk = DiskStore(1000, str(tmp_path))
    monkeypatch.setattr("farflung.compress.stateful.disk_store.os.pwrite", full)
    disk.put(1, b"x" * 10)
    assert "No space left on device" in disk.problem and disk.take(1) is None
