"""What a store holds, a file for each kind of row: nodes, tickets, views, steps, evaluations, checkpoints and the rest.

Each method is one short transaction. connection.py has the access to the database.
"""
