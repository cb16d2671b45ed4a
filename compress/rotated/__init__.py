"""Codecs that rotate blocks before they quantise them."""
