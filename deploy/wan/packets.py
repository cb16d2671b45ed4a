"""IPv4 packets behind a virtio-net header, as a TUN device with IFF_VNET_HDR hands them over. Pure functions on bytes.

Header, 10 bytes, little endian: flags u8, gso_type u8, hdr_len u16, gso_size u16, csum_start u16, csum_offset u16.
With GSO, one packet is up to 64 KB of TCP payload that the wire would carry as segments of gso_size bytes.
"""

from __future__ import annotations

import itertools
import struct
from typing import NamedTuple

VNET = 10
TCP, UDP, ICMP = 6, 17, 1
_FIN_PSH = 0x09
_ETHERNET = 14


class Shape(NamedTuple):
    """How a packet looks on the wire: `frames` frames of `segment` bytes each (the last may be shorter)."""

    segment: int
    frames: int


def shape(packet: bytes) -> Shape:
    """Frames and bytes of a packet with its virtio-net header, Ethernet header counted."""
    if not packet[1]:
        return Shape(len(packet) - VNET + _ETHERNET, 1)
    size = packet[4] | packet[5] << 8
    headers = _headers(packet)
    count = max(1, -(-(len(packet) - VNET - headers) // size))
    total = len(packet) - VNET + (count - 1) * headers + count * _ETHERNET
    return Shape(-(-total // count), count)


def _headers(packet: bytes) -> int:
    ip = (packet[VNET] & 15) * 4
    return ip + (packet[VNET + ip + 12] >> 4) * 4


def destination(packet: bytes) -> int:
    """The last two bytes of the IPv4 destination address as a number; -1 for what is not IPv4 in 10.77/16."""
    if len(packet) < VNET + 20 or packet[VNET] >> 4 != 4 or packet[26:28] != b"\x0a\x4d":
        return -1
    return packet[28] << 8 | packet[29]


class Flow(NamedTuple):
    """Who talks to whom: protocol, the far host, ports (or the ICMP identifier) as the inside host sees them."""

    protocol: int
    far: int
    near_port: int
    far_port: int


def flow(packet: bytes, outgoing: bool) -> Flow | None:
    """The flow a packet belongs to, the same for both directions; None where there are no ports to tell it by
    (later fragments, ICMP errors)."""
    ip = (packet[VNET] & 15) * 4
    protocol = packet[VNET + 9]
    later = (packet[VNET + 6] & 0x1F) << 8 | packet[VNET + 7]
    body = VNET + ip
    if later or len(packet) < body + 8:
        return None
    far = packet[28] << 8 | packet[29] if outgoing else packet[24] << 8 | packet[25]
    if protocol == ICMP:
        if packet[body] not in (0, 8):
            return None
        name = packet[body + 4] << 8 | packet[body + 5]
        # an ICMP request and its answer are one flow of the host that asks
        asked_inside = (packet[body] == 8) == outgoing
        return Flow(protocol, far, name, int(asked_inside))
    source = packet[body] << 8 | packet[body + 1]
    target = packet[body + 2] << 8 | packet[body + 3]
    return Flow(protocol, far, source, target) if outgoing else Flow(protocol, far, target, source)


def starts(packet: bytes) -> bool:
    """Whether an outgoing packet opens a door in a NAT: a TCP SYN, any UDP, an ICMP request."""
    ip = (packet[VNET] & 15) * 4
    protocol = packet[VNET + 9]
    if protocol == TCP:
        return packet[VNET + ip + 13] & 0x12 == 0x02
    if protocol == ICMP:
        return packet[VNET + ip] == 8
    return protocol == UDP


def checksum(data: bytes) -> int:
    """The Internet checksum (RFC 1071) of an even number of bytes."""
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def pieces(packet: bytes, keep: int, lost: tuple[int, ...] | list[int]) -> list[bytes]:
    """The packets that are left of a GSO packet when only its first `keep` segments got through and those in `lost`
    did not. Each piece is a whole packet with its own sequence number, lengths and header checksums."""
    count = shape(packet).frames
    if keep >= count and not lost:
        return [packet]
    if not packet[1]:
        return [] if lost or not keep else [packet]
    edges = [-1, *[at for at in lost if at < keep], keep]
    runs = [(a + 1, b) for a, b in itertools.pairwise(edges) if b > a + 1]
    return [_piece(packet, first, last, count) for first, last in runs]


def _piece(packet: bytes, first: int, last: int, count: int) -> bytes:
    """Segments [first, last) of a GSO packet as a packet."""
    size = packet[4] | packet[5] << 8
    head = _headers(packet)
    ip = (packet[VNET] & 15) * 4
    start = VNET + head
    payload = packet[start + first * size : len(packet) if last >= count else start + last * size]
    new = bytearray(packet[:start]) + payload
    if len(payload) <= size:
        new[1:2] = b"\0"  # one segment needs no segmentation; its checksum is still left to the device
        new[4:6] = b"\0\0"
    old_length, length = len(packet) - VNET, head + len(payload)
    new[VNET + 2 : VNET + 4] = length.to_bytes(2, "big")
    identity = int.from_bytes(packet[VNET + 4 : VNET + 6], "big")
    new[VNET + 4 : VNET + 6] = ((identity + first) & 0xFFFF).to_bytes(2, "big")
    new[VNET + 10 : VNET + 12] = b"\0\0"
    new[VNET + 10 : VNET + 12] = checksum(bytes(new[VNET : VNET + ip])).to_bytes(2, "big")
    tcp = VNET + ip
    sequence = int.from_bytes(packet[tcp + 4 : tcp + 8], "big")
    new[tcp + 4 : tcp + 8] = ((sequence + first * size) & 0xFFFFFFFF).to_bytes(4, "big")
    if last < count:
        new[tcp + 13] &= ~_FIN_PSH & 0xFF  # FIN and PSH belong to the last byte, which is in another piece
    # the checksum field holds the sum of the pseudo header only (VIRTIO_NET_HDR_F_NEEDS_CSUM): its length changed
    partial = int.from_bytes(packet[tcp + 16 : tcp + 18], "big") + length - old_length
    partial = (partial & 0xFFFF) + (partial >> 16)
    new[tcp + 16 : tcp + 18] = ((partial & 0xFFFF) + (partial >> 16)).to_bytes(2, "big")
    return bytes(new)


class Nat:
    """The doors of one host that cannot be dialled: only answers to what it started come in. Bounded."""

    def __init__(self, most: int = 65536) -> None:
        self.most = most
        self.open: dict[Flow, None] = {}

    def outgoing(self, packet: bytes) -> None:
        """Remember what the host starts."""
        if starts(packet):
            found = flow(packet, outgoing=True)
            if found is not None and found not in self.open:
                if len(self.open) >= self.most:
                    del self.open[next(iter(self.open))]
                self.open[found] = None

    def incoming(self, packet: bytes) -> bool:
        """Whether a packet from outside may come in."""
        found = flow(packet, outgoing=False)
        return found is None or found in self.open
