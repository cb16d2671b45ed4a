"""Between the trainer and its I/O process: shared-memory arenas, the pipe, and what the process is told at its start.

Both sides use what is here. What travels is decided in ``wire`` and ``io``.
"""
