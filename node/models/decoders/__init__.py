"""Causal language models of `transformers`: the families, where a model keeps its pieces, how a part of one computes.

Which blocks a stage has is ``definition``'s.
"""
