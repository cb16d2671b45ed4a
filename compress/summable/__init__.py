"""Codecs whose encodings are added up without being decoded, in one phase or several, masked or not.

The arithmetic is decided here; who exchanges what with whom is ``exchange``'s.
"""
