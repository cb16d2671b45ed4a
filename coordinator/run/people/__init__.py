"""What people ask of a run that goes on: commands, profiles, texts.

Who may ask is checked in serve/.
"""
