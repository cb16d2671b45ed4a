"""The compiled loops of codecs that rotate blocks, or take them apart in other ways."""
