"""Who attends, how far away they are, and the orders on their way to them.

Which orders those are is decided in membership/.
"""
