"""What people call from Python: ``farflung.train``, ``farflung.Trainer``, ``farflung.group``.

Here the Python words become a run of this machine or a membership of another's. Nothing is trained here.
"""
