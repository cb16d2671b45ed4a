"""A whole exchange between workers: phase programs, torch.distributed groups, simulations and measurements.

The order of an exchange is decided here; the runtime's own rounds are in ``node/rounds``.
"""
