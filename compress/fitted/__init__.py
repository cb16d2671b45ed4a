"""Codecs whose levels are fitted to each vector, and where fixed tables of levels come from."""
