"""Who lied: sums made again, results and contributions signed, contributions judged by the loss.

The coordinator decides what happens to a liar.
"""
