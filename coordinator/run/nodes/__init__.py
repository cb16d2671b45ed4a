"""The nodes' control streams: which are open, their round trips, and the orders sent on them.

Which orders those are is decided in membership/.
"""
