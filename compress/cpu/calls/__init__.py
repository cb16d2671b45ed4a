"""What hands torch tensors to the compiled loops, a file for each family."""
