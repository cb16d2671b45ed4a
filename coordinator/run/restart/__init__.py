"""What a restarted coordinator needs to know of the run: written while the run goes on, read at the start.

Rows and keys are the store's (store/).
"""
