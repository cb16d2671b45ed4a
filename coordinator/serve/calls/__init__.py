"""The gRPC calls: who may make them, and whom they go on to.

Nothing about the run is decided here.
"""
