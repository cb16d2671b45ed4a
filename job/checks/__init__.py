"""The checks of a job: combinations that are not allowed, of values that are each allowed alone.

One file for each table, each a generator of (key, sentence); `whole.py` runs them all. Of the files that a job names,
only a model folder's config.json is read; of data files only the existence is checked.
"""
