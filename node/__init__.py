"""The worker: one device that trains one stage."""
