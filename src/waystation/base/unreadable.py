"""What may be raised when JSON or MessagePack of others is read.

msgspec has errors of its own, but passes on what Python says of bytes that are not UTF-8 and of
lists that lie in each other without end.
"""

from typing import Final

import msgspec

UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
