"""The words of each command, one file a command: its arguments, its options, their help, and which function it calls.

What a command does is decided beside this folder, or in another room. ``__main__.py`` says which commands there are.
Nothing heavy is imported before a command needs it: ``--help``, ``status`` and ``job init`` answer without torch.
"""
