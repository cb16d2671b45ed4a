"""gRPC and sockets, the same in every process: channels, servers, their limits and trust, and waiting by progress.

``node`` and ``coordinator`` decide what is sent, and to which process.
"""
