"""What the devices of an island share: which ranks compute which samples and matrices, and which keep sections; and how
its processes find and tell each other."""
