"""One step of an optimiser, with the same bits on every device, and the learning rate of each step.

``training.modes`` decides when a step is taken.
"""
