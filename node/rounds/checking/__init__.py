"""Who lied: sums made again, results and contributions signed, contributions judged by the loss.

What follows for a liar is the coordinator's.
"""
