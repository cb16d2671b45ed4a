"""A job's data: file patterns, tokenizers, marks on tokens, facts, and which samples a step has.

job/tables and job/checks define which values are allowed. No torch.
"""
