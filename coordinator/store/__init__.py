"""What a run remembers, in SQLite or PostgreSQL, and who may write it: one coordinator at a time.

Rows and leases are decided here, not what they mean.
"""
