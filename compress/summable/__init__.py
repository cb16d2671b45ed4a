"""Codecs whose encodings are added up without being decoded, in one phase or several, masked or not.

This room decides the arithmetic; ``exchange`` decides which workers exchange what.
"""
