"""The ways in which encodings add up: decoded and summed, summed in a codec's own phases, or summed under masks.

Which vector is encoded and what an update moves are ``arithmetic``'s.
"""
