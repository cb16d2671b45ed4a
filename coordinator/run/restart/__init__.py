"""What a coordinator that starts again has to know of the run, written down while it goes on, and read at the start.

Rows and keys are the store's (store/).
"""
