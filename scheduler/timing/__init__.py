"""How long a step of a given placement takes: by a formula, and by a simulation of the nodes' own orders.

No placement is chosen here.
"""
