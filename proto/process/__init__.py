"""What every process of farflung does in the same way: write files, log, tell people of progress, start Python.

No message and no connection: those are ``messages`` and ``connections``.
"""
