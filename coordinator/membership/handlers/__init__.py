"""The handlers of events: functions of (given, state, event, now), listed in machine.py's table.

phases/ has what follows inside a phase. departures.py may change any phase, and the other handlers import it.
"""
