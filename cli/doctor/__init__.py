"""``farflung doctor``: checks of this machine and of a run that it may join.

Nothing is changed and nobody joins: what a check needs it asks for, and whatever it can't find out is its answer.
"""
