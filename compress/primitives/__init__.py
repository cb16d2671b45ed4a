"""What codecs are built of: bit packing, scales, rotations, counter-based random numbers, tables.

This room knows no codec.
"""
