"""What remembers between two encodings: AQ-SGD's entries of each sample, and error feedback.

When state is committed or dropped is decided here; codecs themselves remember nothing.
"""
