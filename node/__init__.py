"""The worker: one joined process that trains the stages which the plan gives to its device, or to its island."""
