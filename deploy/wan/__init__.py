"""An emulated wide-area network of network namespaces on one Linux machine."""
