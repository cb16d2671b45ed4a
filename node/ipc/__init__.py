"""Between the trainer and its I/O process: shared-memory arenas, the pipe, and what the process is told at its start.

Both processes use this room. Which messages travel is decided in ``wire`` and ``io``.
"""
