"""The tokens of a run as rows: streams of them, a corpus over streams, its index, and what an interrupted start keeps.

How a text becomes tokens is the tokenizer's; which row is trained when, ``job.data.sampling``'s.
"""
