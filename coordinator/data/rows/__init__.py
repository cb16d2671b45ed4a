"""Data whose samples are whole rows, each of which counts once: texts with classes, pairs of answers.

How tokens are marked is decided in job/data; corpus/ has texts that are cut into windows, chat/ conversations.
"""
