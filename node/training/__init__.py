"""The trainer's life: take a view, prepare for it, train in it, leave it.

``rounds`` and ``pipeline`` decide how a round and a pipeline work.
"""
