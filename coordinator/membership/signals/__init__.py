"""The inputs (events) and the effects of the membership machine: frozen values.

Their consequences are decided in handlers/ and phases/.
"""

from __future__ import annotations

from .effects import (
    Ask,
    Caused,
    Dial,
    Effect,
    Fail,
    Fence,
    Finish,
    KeepView,
    LookAt,
    PutAside,
    Say,
    SendFlush,
    SendLeave,
    SendMeasure,
    SendNotice,
    SendStart,
    SendStop,
    SendView,
)
from .from_coordinator import (
    Apart,
    CheckpointComplete,
    CheckpointLost,
    CheckpointSound,
    Dialled,
    Joined,
    Left,
    NotStored,
    Over,
    Planned,
    Replan,
    StreamEnded,
    Tick,
    Tuned,
    Undecidable,
)
from .from_nodes import (
    Accused,
    Back,
    Beats,
    CaughtUp,
    Finished,
    Flushed,
    Heard,
    Hello,
    Kept,
    Leaving,
    Measured,
    Prepared,
    StepFinished,
    Steps,
    Unreadable,
    Waits,
)
from .from_people import Changed, Evict, GoOn, Hold, Pause, Readmit, Release, Save
from .values import Announcement, Fingerprint, Handover, Member, Section, Shadow

Input = (
    Joined
    | Hello
    | Heard
    | Beats
    | Measured
    | Flushed
    | Prepared
    | CaughtUp
    | Kept
    | StepFinished
    | Steps
    | Finished
    | Accused
    | Apart
    | Dialled
    | StreamEnded
    | Left
    | Leaving
    | Back
    | Hold
    | Release
    | Evict
    | Readmit
    | Pause
    | GoOn
    | Changed
    | Save
    | Replan
    | Tuned
    | CheckpointComplete
    | Unreadable
    | Waits
    | CheckpointSound
    | CheckpointLost
    | NotStored
    | Planned
    | Undecidable
    | Over
    | Tick
)

__all__ = [
    "Accused",
    "Announcement",
    "Apart",
    "Ask",
    "Back",
    "Beats",
    "CaughtUp",
    "Caused",
    "Changed",
    "CheckpointComplete",
    "CheckpointLost",
    "CheckpointSound",
    "Dial",
    "Dialled",
    "Effect",
    "Evict",
    "Fail",
    "Fence",
    "Fingerprint",
    "Finish",
    "Finished",
    "Flushed",
    "GoOn",
    "Handover",
    "Heard",
    "Hello",
    "Hold",
    "Input",
    "Joined",
    "KeepView",
    "Kept",
    "Leaving",
    "Left",
    "LookAt",
    "Measured",
    "Member",
    "NotStored",
    "Over",
    "Pause",
    "Planned",
    "Prepared",
    "PutAside",
    "Readmit",
    "Release",
    "Replan",
    "Save",
    "Say",
    "Section",
    "SendFlush",
    "SendLeave",
    "SendMeasure",
    "SendNotice",
    "SendStart",
    "SendStop",
    "SendView",
    "Shadow",
    "StepFinished",
    "Steps",
    "StreamEnded",
    "Tick",
    "Tuned",
    "Undecidable",
    "Unreadable",
    "Waits",
]
