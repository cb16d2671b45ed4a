"""A round as a pure machine: who sends what to whom, when a part is decided, and the messages of that.

No arithmetic and no socket: those are ``arithmetic`` and ``round_link``.
"""
