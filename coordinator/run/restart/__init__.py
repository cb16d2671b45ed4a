"""The data that a restarted coordinator needs: written during the run, read at the start.

store/ defines the rows and keys.
"""
