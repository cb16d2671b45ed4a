"""A node's part in its pipeline: the schedule's order followed, activations in and out, devices of an island.

``scheduler.workloads.schedules`` defines the order.
"""
