"""What one group shares: parameters, gradients and moments as flat fp32 vectors.

``optimizers`` and ``rounds`` decide how they change.
"""
