"""One file for each command: its arguments, its options, their help, and the function that it calls.

The functions are in the other folders of cli/, or in other rooms. ``__main__.py`` lists the commands.
Nothing heavy is imported before a command needs it: ``--help``, ``status`` and ``job init`` answer without torch.
"""
