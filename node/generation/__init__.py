"""A trained model out of a run: export to a folder that transformers loads, and text from it.

Nothing is trained here.
"""
