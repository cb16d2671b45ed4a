"""What a run tells people: status, advice, history, metrics, loggers.

Everything here reads; nothing changes a run.
"""
