"""Exceptions that decoding foreign JSON or MessagePack may raise.

msgspec raises its own errors, but lets Python's pass for bytes that are not UTF-8 and for lists
nested too deeply.
"""

from typing import Final

import msgspec

DECODE_ERRORS: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
