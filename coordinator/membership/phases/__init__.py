"""What follows inside each phase of a view, a file for each: functions of (given, state, now) to the next state.

A file imports only what stands below it: verdict, planning, awaited; then beginning; then the other phases. What takes
an event in, and may change any phase, is in handlers/.
"""
