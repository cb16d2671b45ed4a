"""Receivers of a run's events: experiment trackers, the owner's evaluation command, and the notices that are stored.

They read events and change no decision of the run.
"""
