"""How results look: JSON lines for scripts; tables, sentences and progress bars for people.

Only the form is decided here; the content comes in events.
"""
