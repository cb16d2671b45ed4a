"""The tokens of a run as rows: streams of them, a corpus over streams, its index, and what an interrupted start keeps.

The tokenizer decides how a text becomes tokens, ``job.data.sampling`` which step trains which row.
"""
