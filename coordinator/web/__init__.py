"""The coordinator's web page: who may see it, what it shows, and the server on the coordinator's own event loop."""
