"""The scheduler, asked with a run's numbers, and what corrects these numbers: measured speeds and links.

Where a plan is wanted is membership's to decide.
"""
