"""One step of an optimiser, with the same bits on every device, and the learning rate of each step.

When a step is taken is decided in ``training.modes``.
"""
