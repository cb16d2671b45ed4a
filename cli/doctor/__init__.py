"""``farflung doctor``: checks of this machine and of a run that it may join.

Checks change nothing and do not join. Each states what it needs; what it cannot find out becomes its answer.
"""
