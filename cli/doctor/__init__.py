"""``farflung doctor``: checks of this machine and of a run that it may join.

Checks change nothing and do not join. A check that can't find something out says so in its answer.
"""
