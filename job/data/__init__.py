"""A job's data: file patterns, text to tokens, marks on tokens, facts found out once, and which samples a step has.

What a job may say of its data is in job/tables and job/checks. No torch.
"""
