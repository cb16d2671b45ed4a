"""A run's events in words for people: sentences, lines of a plan, sums and savings. Pure: no terminal, no clock.

Where and how the words appear is decided in cli/screen.
"""
