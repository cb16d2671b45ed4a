"""How a step ends and when a round begins: ``gradient``, ``delta``, ``gossip``, ``async``.

How a round runs is ``node.rounds``'.
"""
