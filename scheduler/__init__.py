"""Who trains which layers with whom: networks, cost, search, plans, schedules."""
