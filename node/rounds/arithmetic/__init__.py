"""From a section's weights to a contribution, from contributions to a result, from results to new weights.

Whose contributions count is decided in ``protocol``.
"""
