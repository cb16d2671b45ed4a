"""The format of blobs: writing them, reading them, and checks of what a blob claims."""
