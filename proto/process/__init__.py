"""What every process of farflung does in the same way: write files, log, tell people of progress, start Python.

It has no messages and no connections: these are in ``messages`` and ``connections``.
"""
