"""The words of ``farflung coordinator ...``: start a coordinator, make tickets, give orders, replay a run.

What these commands do is decided in farflung.coordinator.
"""
