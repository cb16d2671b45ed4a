"""What a node holds for its place: flat fp32 vectors, moments, optimisers, and how they travel and are kept.

``rounds`` and ``training`` decide when they change.
"""
