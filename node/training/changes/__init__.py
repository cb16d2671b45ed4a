"""From one view to the next: what is finished of the old one, which place comes, and its state.

Which view comes next is the coordinator's.
"""
