"""What a start settles before nodes may join: the options, the address, the rules, and whether an old run may go on.

The order of the steps is lead.py's.
"""
