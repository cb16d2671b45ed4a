"""Devices and the links between them: from a file, from words or from a run's measurements.

Latencies and bandwidths that nobody measured are filled in here. Where stages run is not decided here.
"""
