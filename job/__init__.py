"""The job: its schema, its file, its checks, and what follows from it alone (which samples a step has).

What a job may say is decided here, not how it is carried out. No torch, no network.
"""
