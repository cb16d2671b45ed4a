"""The bytes of messages: frames between nodes, the bodies of headers, edits of views, traces, pieces of artifacts.

What a word in them may be is ``words``'; which connection carries them is ``connections``'.
"""
