"""The decisions inside each phase of a view, a file for each phase: functions of (given, state, now) to the next state.

A file imports only lower ones. From the lowest: verdict, planning, awaited; then beginning; then the other phases. The
handlers of events, which may change any phase, are in handlers/.
"""
