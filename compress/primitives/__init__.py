"""What codecs are built of: bit packing, scales, rotations, counter-based random numbers, tables.

No codec is known here.
"""
