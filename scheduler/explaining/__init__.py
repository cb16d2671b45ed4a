"""How long a plan's step takes and why, in words and pictures, and which change would shorten the step or use the
spares.

No plan is changed here.
"""
