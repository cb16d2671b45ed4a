"""Recipes for where farflung runs (images, clouds, clusters), and an emulated WAN."""
