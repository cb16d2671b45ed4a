"""The databases that may hold a run: one file (SQLite) or a server (PostgreSQL), behind one Protocol, database.py.

How statements and transactions reach a database is decided here; which tables there are is not.
"""
