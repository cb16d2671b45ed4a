"""The machine: what it can do, what its owner allows, its key, its clock and its disk cache.

Nothing of a run is decided here.
"""
