"""How results look: JSON lines for scripts; tables, sentences and progress bars for people.

Only the form is decided here; what a run does comes in its events.
"""
