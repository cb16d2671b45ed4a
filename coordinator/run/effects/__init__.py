"""Performs the effects of the membership machine, and retries those that fail.

The effects are decided in membership/.
"""
