"""From a section's weights to a contribution, from contributions to a result, from results to new weights.

``protocol`` decides whose contributions count.
"""
