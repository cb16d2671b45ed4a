"""The pipe between trainer and I/O process when signal handlers raise in the middle of a write."""

import signal
import socket
import threading

from farflung.node.ipc.pipe import TrainerEnd, Unpacker


class Interrupted(Exception):
    pass


def test_an_interrupted_write_neither_loses_nor_repeats_bytes():
    """A handler may raise between a send and the use of its result; the stream must stay what was written."""
    ours, theirs = socket.socketpair()
    received = []

    def read():
        unpacker = Unpacker()
        with theirs:
            while data := theirs.recv(1 << 16):
                received.extend(unpacker.feed(data))

    def interrupt(_, frame):
        if frame is not None and frame.f_code is TrainerEnd.write.__code__:
            raise Interrupted

    reader = threading.Thread(target=read)
    reader.start()
    end = TrainerEnd(ours)
    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    written, interrupted = 0, 0
    begun = []  # numbers whose write was interrupted: they arrive whole, or not at all if nothing was begun
    try:
        while interrupted < 30:
            try:
                end.write(written, bytes(60_000))
            except Interrupted:
                interrupted += 1
                begun.append(written)
            written += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
    end.write(written, b"last")
    end.close()
    reader.join()
    numbers = [number for number, _ in received]
    assert numbers == sorted(set(numbers))
    assert set(range(written + 1)) - set(numbers) <= set(begun)
    assert all(payload == (b"last" if number == written else bytes(60_000)) for number, payload in received)
