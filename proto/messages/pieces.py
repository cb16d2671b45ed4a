"""How the tokens of a run are cut into pieces that are fetched, checked and kept as a whole."""

SMALLEST = 256 << 10
MOST = 1 << 17
"""The most pieces, so that the digests of all of them (4 MiB) fit into one message."""


def piece_size(size: int) -> int:
    """The piece size in bytes for ``size`` bytes of tokens: 256 KiB, doubled until there are at most 131072 pieces."""
    piece = SMALLEST
    while piece * MOST < size:
        piece *= 2
    return piece
