"""What people call from Python: ``farflung.train``, ``farflung.Trainer``, ``farflung.group``.

These calls start a run on this machine, or join a run elsewhere. Nothing is trained in this room.
"""
