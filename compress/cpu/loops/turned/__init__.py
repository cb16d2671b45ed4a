"""The compiled loops of codecs that rotate blocks or process them in other ways ("turned": rotated)."""
