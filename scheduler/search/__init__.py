"""Which placement is fastest: shapes, constructions, annealing, crossover and small changes.

How long a placement takes is asked of ``timing``.
"""
