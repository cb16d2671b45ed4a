"""Codecs that send every element in fewer bits.

Each file is one family of codecs; ``specs/declarations`` has their names, numbers and parameters.
"""
