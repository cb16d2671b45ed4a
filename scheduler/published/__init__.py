"""The cost of DT-FM (Yuan et al. 2022) and the search for its least, to compare with.

Nothing that a run uses is decided here.
"""
