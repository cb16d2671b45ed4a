"""Conversations: rows of messages, rendered by the model's chat template, packed into samples with marks.

Which tokens of a conversation are learnt is decided here; the marks themselves are ``job.data.marks``'s.
"""
