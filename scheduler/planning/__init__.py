"""From a network and a job to a plan: whole, near one in force, for thousands; codecs, publishers, spares' reasons.

Placements are found in ``search``.
"""
