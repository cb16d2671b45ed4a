"""What takes each event in: functions of (given, state, event, now), named by machine.py's table.

What then follows inside a phase is in phases/. departures.py, which may change any phase, stands below the others.
"""
