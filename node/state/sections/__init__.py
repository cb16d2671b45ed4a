"""What one group shares: parameters, gradients and moments as flat fp32 vectors.

What is done with them is decided in ``optimizers`` and ``rounds``.
"""
