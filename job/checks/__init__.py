"""The checks of a job: what does not go together, of values that are each allowed by itself.

One file for each table, each a generator of (key, sentence); `whole.py` runs them all. Of the files that a job names
only a model folder's config.json is read; the data are only looked for.
"""
