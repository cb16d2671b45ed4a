"""Consequences of judgements: a node that others judge harmful is put out, a run that no longer improves ends.

Which node is at fault is decided in membership/faults.
"""
