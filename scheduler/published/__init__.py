"""The cost of DT-FM (Yuan et al. 2022) and a search for the placement with the least cost, as a comparison.

Nothing that a run uses is decided here.
"""
