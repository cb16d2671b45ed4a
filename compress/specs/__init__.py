"""What codecs are called and what they promise: declarations, specs, sizes. No torch here."""
