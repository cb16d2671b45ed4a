"""What words from outside may be: names of nodes, the link that a person pastes, every string field of a message.

A string that is not allowed is refused here, before it becomes a path, an address or a line on a terminal. The room
also has the names of sections and of a checkpoint's files, which nodes and the coordinator must spell alike.
"""
