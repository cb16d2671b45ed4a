"""Calls that begin and never end, spoken as HTTP/2 by hand: no gRPC client would do that."""

import contextlib
import select
import socket
import ssl
import struct
import time

_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _GOAWAY, _WINDOW = 0, 1, 3, 4, 6, 7, 8


def _frame(kind, flags, stream, body=b""):
    return struct.pack(">I", len(body))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + body


def _header(name, value):
    return b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()


class HalfSent:
    """A TLS connection with calls of ``path``, of each message as much as the other side takes, and never its end.

    ``sent``: bytes that it has taken; ``answered``: streams that it has ended or answered.
    """

    def __init__(self, port, calls, path="/farflung.Coordinator/Join", size=(8 << 20) - 64, source="127.0.0.1"):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.set_alpn_protocols(["h2"])
        plain = socket.create_connection(("127.0.0.1", port), 30, source_address=(source, 0))
        self.socket = context.wrap_socket(plain, server_hostname="coordinator")
        self._poll = select.poll()  # select() counts no further than 1024
        self._poll.register(self.socket, select.POLLIN)
        self.sent, self.answered, self.open = 0, set(), True
        self._connection, self._initial, self._unread = 65535, 65535, b""
        fields = {":method": "POST", ":scheme": "https", ":path": path, ":authority": "coordinator"}
        fields |= {"content-type": "application/grpc", "te": "trailers"}
        head = b"".join(_header(name, value) for name, value in fields.items())
        self._left = {2 * number + 1: size + 5 for number in range(calls)}
        self._windows = dict.fromkeys(self._left, 65535)
        self._first = dict.fromkeys(self._left, b"\0" + struct.pack(">I", size))
        begin = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(_SETTINGS, 0, 0)
        self.socket.sendall(begin + b"".join(_frame(_HEADERS, 4, stream, head) for stream in self._left))

    def pump(self, seconds):
        """Send what is taken, all but the last byte of each message, until all calls have ended; at most so long."""
        end, calls = time.monotonic() + seconds, len(self._left)
        while self.open and len(self.answered) < calls and time.monotonic() < end:
            with contextlib.suppress(OSError):
                self._hear()
            moved = False
            for stream in self._left:
                room = min(self._connection, self._windows[stream], 16384, self._left[stream] - 1)
                if room > 0 and stream not in self.answered:
                    head, self._first[stream] = self._first[stream], b""
                    data = head + bytes(max(0, room - len(head)))
                    try:
                        self.socket.sendall(_frame(_DATA, 0, stream, data))
                    except OSError:
                        self.open = False
                        return
                    self.sent += len(data)
                    for kept in (self._left, self._windows):
                        kept[stream] -= len(data)
                    self._connection -= len(data)
                    moved = True
            if not moved:
                time.sleep(0.01)

    def _hear(self):
        while self.socket.pending() or self._poll.poll(0):
            data = self.socket.recv(65536)
            if not data:
                self.open = False
                return
            self._unread += data
        while len(self._unread) >= 9:
            size = int.from_bytes(self._unread[:3], "big")
            if len(self._unread) < 9 + size:
                return
            kind, flags = self._unread[3], self._unread[4]
            stream = int.from_bytes(self._unread[5:9], "big") & 0x7FFFFFFF
            body, self._unread = self._unread[9 : 9 + size], self._unread[9 + size :]
            if kind == _WINDOW:
                more = int.from_bytes(body, "big") & 0x7FFFFFFF
                if stream:
                    self._windows[stream] += more
                else:
                    self._connection += more
            elif kind == _SETTINGS and not flags & 1:
                for at in range(0, size, 6):
                    name, value = struct.unpack(">HI", body[at : at + 6])
                    if name == 4:
                        self._windows = {one: had + value - self._initial for one, had in self._windows.items()}
                        self._initial = value
                self.socket.sendall(_frame(_SETTINGS, 1, 0))
            elif kind == _PING and not flags & 1:
                self.socket.sendall(_frame(_PING, 1, 0, body))
            elif kind == _GOAWAY:
                self.open = False
            elif kind in (_RESET, _HEADERS) and stream:
                self.answered.add(stream)

    def close(self):
        self.socket.close()
