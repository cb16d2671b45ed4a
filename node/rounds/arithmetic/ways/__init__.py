"""The ways in which encodings add up: decoded and summed, summed in a codec's own phases, or summed under masks.

``arithmetic`` decides which vector is encoded and what an update changes.
"""
