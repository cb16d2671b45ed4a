"""Finds the fastest placement: shapes, constructions, annealing, crossover and small changes.

``timing`` says how long a placement takes.
"""
