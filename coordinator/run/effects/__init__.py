"""What the membership machine asks for, done or tried again.

What it asks for is decided in membership/.
"""
