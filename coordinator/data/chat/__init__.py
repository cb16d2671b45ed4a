"""Conversations: rows of messages, rendered by the model's chat template, packed into samples with marks.

Which tokens of a conversation are learnt is decided here; ``job.data.marks`` defines the marks.
"""
