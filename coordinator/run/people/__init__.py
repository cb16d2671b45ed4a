"""Requests of people to a live run: commands, profiles, texts.

Who may ask is checked in serve/.
"""
