"""One exchange of updates inside a group: the protocol as a pure machine, and what encodes, adds up, applies, audits.

``training`` decides when a round begins.
"""
