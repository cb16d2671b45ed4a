"""Packets: their shape, what is left of one that loses segments, and a NAT's memory."""

from __future__ import annotations

import socket
import struct

from hypothesis import given
from hypothesis import strategies as st

from farflung.deploy.wan.packets import ICMP, TCP, UDP, VNET, Nat, checksum, destination, pieces, shape

A, B, OUTSIDE = "10.77.0.1", "10.77.0.2", "10.1.0.2"


def ip(protocol: int, body: bytes, source: str = A, target: str = B, identity: int = 7, fragment: int = 0) -> bytes:
    head = struct.pack(
        "!BBHHHBBH4s4s",
        0x45,
        0,
        20 + len(body),
        identity,
        fragment,
        64,
        protocol,
        0,
        socket.inet_aton(source),
        socket.inet_aton(target),
    )
    return head[:10] + checksum(head).to_bytes(2, "big") + head[12:] + body


def tcp(
    payload: bytes,
    size: int = 0,
    flags: int = 0x18,
    sequence: int = 1000,
    ports: tuple[int, int] = (5000, 80),
    ends: tuple[str, str] = (A, B),
) -> bytes:
    """As a TUN device hands it over: partial checksum, GSO when the payload is longer than `size`."""
    options = bytes([1, 1, 8, 10]) + bytes(8)
    head = struct.pack("!HHIIBBHHH", *ports, sequence, 1, (20 + len(options)) // 4 << 4, flags, 1000, 0, 0) + options
    segment = head + payload
    pseudo = socket.inet_aton(ends[0]) + socket.inet_aton(ends[1]) + struct.pack("!BBH", 0, TCP, len(segment))
    segment = segment[:16] + (~checksum(pseudo) & 0xFFFF).to_bytes(2, "big") + segment[18:]
    gso = bool(size) and len(payload) > size
    vnet = struct.pack("<BBHHHH", 1, 1 if gso else 0, 52, size if gso else 0, 20, 16)
    return vnet + ip(TCP, segment, *ends)


def finish(packet: bytes) -> bytes:
    """The TCP checksum that the device would fill in, checked against one computed from scratch."""
    segment = packet[VNET + 20 :]
    padded = segment + bytes(len(segment) % 2)
    filled = checksum(padded)  # over the field that holds the pseudo header's sum
    pseudo = packet[VNET + 12 : VNET + 20] + struct.pack("!BBH", 0, TCP, len(segment))
    zeroed = padded[:16] + b"\0\0" + padded[18:]
    assert filled in (checksum(pseudo + zeroed), checksum(pseudo + zeroed) ^ 0xFFFF)
    return segment


def test_shapes() -> None:
    assert shape(tcp(b"x" * 100)) == (52 + 100 + 14, 1)
    frame, count = shape(tcp(b"x" * 14480, 1448))
    assert (frame, count) == (1514, 10)
    frame, count = shape(tcp(b"x" * 14481, 1448))
    assert count == 11 and abs(frame * count - (14481 + 11 * 66)) < 11
    assert destination(tcp(b"")) == 2
    assert destination(bytes(VNET) + ip(UDP, bytes(8), A, OUTSIDE)) == -1
    assert destination(bytes(VNET) + b"\x60" + bytes(60)) == -1
    assert destination(b"") == -1


@given(
    st.binary(min_size=1, max_size=6000),
    st.integers(100, 1448),
    st.integers(0, 60),
    st.sets(st.integers(0, 60)),
    st.integers(0, 2**32 - 1),
)
def test_pieces_are_the_segments_that_got_through(
    payload: bytes, size: int, keep: int, lost: set[int], sequence: int
) -> None:
    packet = tcp(payload, size, sequence=sequence)
    count = shape(packet).frames
    keep = min(keep, count)
    gone = sorted(at for at in lost if at < keep)
    survivors = [at for at in range(keep) if at not in gone]
    got = b""
    for piece in pieces(packet, keep, gone):
        segment = finish(piece)
        head = VNET + 52
        assert checksum(piece[VNET : VNET + 20]) == 0, "the IPv4 header's checksum"
        assert int.from_bytes(piece[VNET + 2 : VNET + 4], "big") == len(piece) - VNET
        first = (int.from_bytes(segment[4:8], "big") - sequence) % 2**32
        assert payload[first : first + len(piece) - head] == piece[head:]
        last = first + len(piece) - head >= len(payload)
        assert bool(segment[13] & 8) == last, "PSH goes with the last byte"
        assert bool(piece[1]) == (len(piece) - head > size)
        got += piece[head:]
    assert got == b"".join(payload[at * size : (at + 1) * size] if count > 1 else payload for at in survivors)


def test_a_whole_packet_is_passed_as_it_is() -> None:
    packet = tcp(b"x" * 5000, 1448)
    assert pieces(packet, 4, [])[0] is packet
    assert pieces(tcp(b"x"), 1, [0]) == []


def udp(ends: tuple[str, str], ports: tuple[int, int]) -> bytes:
    return bytes(VNET) + ip(UDP, struct.pack("!HHHH", *ports, 8, 0), *ends)


def echo(kind: int, ends: tuple[str, str], name: int) -> bytes:
    return bytes(VNET) + ip(ICMP, struct.pack("!BBHHH", kind, 0, 0, name, 1), *ends)


def test_nat_lets_in_answers_only() -> None:
    nat = Nat()
    answer = tcp(b"", flags=0x12, ports=(80, 5000), ends=(B, A))
    assert not nat.incoming(answer)
    nat.outgoing(tcp(b"", flags=0x02, ports=(5000, 80)))
    assert nat.incoming(answer)
    assert not nat.incoming(tcp(b"", flags=0x02, ports=(81, 5000), ends=(B, A))), "another port is another caller"
    assert not nat.incoming(tcp(b"", flags=0x02, ports=(80, 5001), ends=(B, A)))


def test_an_answer_to_a_caller_opens_no_door() -> None:
    nat = Nat()
    nat.outgoing(tcp(b"", flags=0x12, ports=(22, 4000)))
    assert not nat.incoming(tcp(b"", flags=0x02, ports=(4000, 22), ends=(B, A)))


def test_nat_and_udp_and_ping() -> None:
    nat = Nat()
    assert not nat.incoming(udp((B, A), (9, 7)))
    nat.outgoing(udp((A, B), (7, 9)))
    assert nat.incoming(udp((B, A), (9, 7)))
    assert not nat.incoming(echo(8, (B, A), 3)), "it cannot be pinged"
    nat.outgoing(echo(8, (A, B), 3))
    assert nat.incoming(echo(0, (B, A), 3))
    assert not nat.incoming(echo(8, (B, A), 3)), "also not after it has pinged itself"
    assert nat.incoming(bytes(VNET) + ip(ICMP, bytes([11]) + bytes(20), B, A)), "an ICMP error"
    assert nat.incoming(bytes(VNET) + ip(UDP, bytes(16), B, A, fragment=100)), "a later fragment"


def test_a_nat_remembers_a_bounded_number() -> None:
    nat = Nat(most=10)
    for port in range(100):
        nat.outgoing(udp((A, B), (port, 9)))
    assert len(nat.open) == 10 and nat.incoming(udp((B, A), (9, 99))) and not nat.incoming(udp((B, A), (9, 1)))
