"""Where a conversation with a user agent stands, and what it may be closed with."""

import enum

NORMAL, UNSUPPORTED, INTERNAL = 1000, 1003, 1011
ALREADY_CONNECTED = "AlreadyConnected"


class State(enum.IntEnum):
    UNIDENTIFIED = 0
    GREETING = 1  # its record is being read and claimed
    IDENTIFIED = 2
    DROPPING = 3  # its record is being removed, and nothing new is begun
    CLOSED = 4


# By themselves: a member of an enum costs 75 ns where a global costs 5 (CPython 3.11), and every
# message asks several times.
UNIDENTIFIED, GREETING, IDENTIFIED, DROPPING, CLOSED = State
