"""The gRPC calls: the checks on callers, and the parts of the run that answer.

Nothing about the run is decided here.
"""
