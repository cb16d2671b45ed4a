"""Causal language models of `transformers`: the families, where a model keeps its pieces, how a part of one computes.

``definition`` decides which blocks a stage has.
"""
