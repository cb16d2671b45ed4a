"""A pretrained model's folder: its config.json, its name on the Hugging Face hub, Git LFS pointers in it.

Weights are never read here.
"""
