"""From a network and a job to a plan: a new one, one near the plan in force, or one for thousands of devices; with
codecs, publishers and a reason for each spare.

Placements are found in ``search``.
"""
