"""Functions that call the compiled loops with torch tensors, a file for each family."""
