"""How long a step of a given placement takes: by a formula, and by a simulation of the actions that nodes execute.

No placement is chosen here.
"""
