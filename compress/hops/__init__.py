"""Codecs made to be decoded, added and encoded again on the way."""
