"""The job: its schema, its file, its checks, and which samples each step has, which follows from the job alone.

Which jobs are allowed is decided here, not how a run executes one. No torch, no network.
"""
