"""gRPC and sockets, the same in every process: channels, servers, their limits and trust, and waiting by progress.

What is sent over them, and to whom, is decided by ``node`` and ``coordinator``.
"""
