"""A cable between two endpoints that a test can cut, slow down, or let flip bits: a TCP proxy in a thread."""

import contextlib
import random
import socket
import threading
import time

OPENING = 10_000
"""Bytes within which a connection greets. Only one that carried more is cut or spoiled: of a link whose second
connection breaks while it opens, nobody is told."""


class Cable:
    """Listens on `address` and forwards both ways to `target` (HOST:PORT)."""

    def __init__(self, target):
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.forwarded = 0
        self.flip_at = None  # one bit is flipped, of a piece that ends after so many forwarded bytes
        self.cut_at = None  # the connection that carries more ends after so many forwarded bytes
        self.rate = None  # bytes a second that get through towards the target
        self.frozen_at = None  # from so many forwarded bytes on it is frozen
        self.one_way = False  # nothing gets through towards the target, what comes from there does
        self.loss = 0.0  # the part of the pieces that come only after a retransmission timer, towards both ends
        self.frozen = False  # nothing gets through any more, and nobody is told
        self._sockets, self._threads = [], []
        self._run(self._accept)

    def cut(self):
        """Ends every connection that is open now; new ones get through."""
        sockets, self._sockets = self._sockets, []
        threads, self._threads[1:] = self._threads[1:], []
        for one in sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join(5)
        for one in sockets:
            one.close()

    def close(self):
        self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join(5)
        self.cut()
        self._listener.close()

    def _run(self, work, *arguments):
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        thread.start()
        self._threads.append(thread)

    def _accept(self):
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            host, _, port = self._target.rpartition(":")
            try:
                far = socket.create_connection((host, int(port)))
            except OSError:
                near.close()
                continue
            self._sockets += [near, far]
            self._run(self._forward, near, far, True)
            self._run(self._forward, far, near, False)

    def _forward(self, source, sink, counted):
        carried = 0
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                carried += len(data)
                while self.frozen or (self.one_way and counted):
                    time.sleep(0.05)
                timer = 0.2
                while self.loss and random.random() < self.loss:
                    time.sleep(timer)
                    timer *= 2
                if counted:
                    if self.rate:
                        time.sleep(len(data) / self.rate)
                    data = self._spoiled(data, carried > OPENING)
                    if self.frozen_at is not None and self.forwarded >= self.frozen_at:
                        self.frozen_at, self.frozen = None, True
                sink.sendall(data)
                if counted and carried > OPENING and self.cut_at is not None and self.forwarded >= self.cut_at:
                    self.cut_at = None
                    break
        for one in (source, sink):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def _spoiled(self, data, greeted):
        self.forwarded += len(data)
        if greeted and self.flip_at is not None and self.flip_at < self.forwarded:
            data = bytearray(data)
            data[-1] ^= 0x10
            self.flip_at = None
        return data
