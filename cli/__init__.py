"""What is typed and seen: one file for each command of ``farflung``.

Here words become calls, and answers become screens and exit statuses. What a run does is decided elsewhere.
"""
