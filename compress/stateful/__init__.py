"""State between two encodings: AQ-SGD's entries of each sample, and error feedback.

This room decides when state is committed or dropped; codecs themselves have no state.
"""
