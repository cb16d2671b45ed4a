"""The service that owns membership: who is in, who does what, and why."""
