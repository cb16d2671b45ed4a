"""A whole exchange between workers: phase programs, torch.distributed groups, simulations and measurements.

This room decides the order of an exchange; farflung's own rounds are in ``node/rounds``.
"""
