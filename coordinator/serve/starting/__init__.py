"""What a start decides before nodes may join: the options, the address, the rules, and whether an old run may continue.

lead.py has the order of the steps.
"""
