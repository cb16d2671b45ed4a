"""``farflung coordinator start``: the gRPC service and everything that runs beside it, up and down in order.

Calls are checked here and handed on.
"""
