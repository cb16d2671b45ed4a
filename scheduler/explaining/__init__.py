"""What a plan takes and why, in words and pictures, and what would help it or the machines it leaves out.

No plan is changed here.
"""
