"""Codecs made to be decoded, added and encoded again at each hop."""
