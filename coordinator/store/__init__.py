"""The database of a run, SQLite or PostgreSQL, and the lock or lease by which one coordinator at a time writes it.

Rows and leases are defined here; other rooms decide what they mean.
"""
