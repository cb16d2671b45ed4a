"""Who may join and how both sides prove themselves: the CA, certificates, tickets.

What a member may do is checked by the code that does it.
"""
