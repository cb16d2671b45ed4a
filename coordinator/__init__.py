"""The service that owns membership: which nodes are in the run, what each does, and why."""
