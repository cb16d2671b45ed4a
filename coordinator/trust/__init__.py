"""Who may join and how both sides prove themselves: the CA, certificates, tickets.

What a member may do once inside is decided where it is done.
"""
