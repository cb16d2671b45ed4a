"""From one view to the next: what is finished of the old one, which place comes, and its state.

The coordinator decides which view comes next.
"""
