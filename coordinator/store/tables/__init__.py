"""What a store holds, a file for each kind of row: nodes, tickets, views, steps, evaluations, checkpoints and the rest.

Each method is one short transaction. How it reaches a database is connection.py's.
"""
