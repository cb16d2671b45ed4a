"""The bytes of messages: frames between nodes, the bodies of headers, edits of views, traces, pieces of artifacts.

``words`` checks the strings in them; ``connections`` carries them.
"""
