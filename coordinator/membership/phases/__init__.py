"""What follows from an event, a file for each phase or subject: functions of (given, state, event, now).

machine.py says which event goes where. A file imports only what stands below it: given, planning, beginning; then
the phases; then departures, which may change any phase; then what takes events in.
"""
