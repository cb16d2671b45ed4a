"""``farflung coordinator start``: starts the gRPC service and everything that runs beside it in order, and stops them
in reverse order.

Calls are checked here and passed to the run.
"""
