"""The command line: one file for each command of ``farflung``, and how results are shown.

Here typed words become function calls, and results become text and exit statuses. What a run does is decided elsewhere.
"""
