"""The nodes' control streams: which are open, their round trips, and the orders sent on them.

The orders are decided in membership/.
"""
