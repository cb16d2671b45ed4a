"""The commands ``farflung coordinator ...``: start a coordinator, make tickets, give commands to a run, replay a run.

What these commands do is decided in farflung.coordinator.
"""
