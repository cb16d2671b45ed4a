"""Codecs that send every element in fewer bits.

Each file is one family of codecs; its name, number and parameters stand in ``declarations``.
"""
