"""Calls the scheduler with a run's numbers, and corrects these numbers by speeds and links measured in training.

Membership decides when a plan is needed.
"""
