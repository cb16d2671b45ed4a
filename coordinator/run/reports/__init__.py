"""What nodes report of their work: whether it can be true, and what it adds up to.

What follows for who is in is decided in membership/.
"""
