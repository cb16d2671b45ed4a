"""How a step ends and when a round begins: ``gradient``, ``delta``, ``gossip``, ``async``.

``node.rounds`` decides how a round runs.
"""
