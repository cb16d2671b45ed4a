"""Performs the effects of the membership machine, and retries those that fail.

What it asks for is decided in membership/.
"""
