"""A round as a pure machine: who sends what to whom, when a part is decided, and the messages of that.

It has no arithmetic and no sockets: these are in ``arithmetic`` and ``round_link``.
"""
