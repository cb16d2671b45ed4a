"""How the devices of an island compute a pass together: which ranks share the samples, and which the matrices."""
