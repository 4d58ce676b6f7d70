"""The Huffman code of HPACK (RFC 7541, section 5.2 and appendix B).

The code is canonical, so the lengths of the 257 codes are the whole table. Strings are read four
bits at a time: the shortest code has five, so a step gives at most one symbol.

Rule 1: what is left at the end is fewer than eight bits, all ones (the start of the end symbol).
Rule 2: the end symbol itself never occurs.
"""

from collections.abc import Iterator
from functools import cache

END = 256

# Two digits a symbol, sixteen symbols a line.
_LENGTHS = (
    "13232828282828282824302828302828"
    "28282828282830282828282828282828"
    "06101012130608111010081108060606"
    "05050506060606060606070815061210"
    "13060707070707070707070707070707"
    "07070707070707070807081319131406"
    "15050605060506060605070706060605"
    "06070605050607070707071511141328"
    "20222020222222232223232323232423"
    "24242223242323232321222322232324"
    "22212022222323212322222421222323"
    "21212221232223232022222223222223"
    "26262019222322252626262727262425"
    "19212627272627242121262628272727"
    "20242021222121232222252524242623"
    "26272626272727272728272727272726"
    "30"
)


class HuffmanError(ValueError):
    """The bits are not a string of this code."""


def codes() -> list[tuple[int, int]]:
    """(code, its length in bits) for each symbol."""
    lengths = [int(_LENGTHS[at : at + 2]) for at in range(0, len(_LENGTHS), 2)]
    found = [(0, 0)] * len(lengths)
    code = 0
    length_before = 0
    for symbol in sorted(range(len(lengths)), key=lambda symbol: (lengths[symbol], symbol)):
        code <<= lengths[symbol] - length_before
        length_before = lengths[symbol]
        found[symbol] = (code, length_before)
        code += 1
    return found


def encode(text: bytes) -> bytes:
    """For tests and for headers that are encoded once."""
    table = codes()
    bits = 0
    count = 0
    for byte in text:
        code, length = table[byte]
        bits = bits << length | code
        count += length
    padding = -count % 8
    return (bits << padding | (1 << padding) - 1).to_bytes((count + padding) // 8, "big")


@cache
def _steps() -> tuple[list[int], list[int], list[bool]]:
    """Next state and symbol (-1 for none) by `state * 16 + four bits`; whether a state may end.

    Built when the first coded string arrives: four thousand steps, a few milliseconds.
    """
    children: list[list[int]] = [[-1, -1]]  # a state, or -2 - symbol
    for symbol, (code, length) in enumerate(codes()):
        state = 0
        for bit in (code >> shift & 1 for shift in range(length - 1, 0, -1)):
            if children[state][bit] == -1:
                children.append([-1, -1])
                children[state][bit] = len(children) - 1
            state = children[state][bit]
        children[state][code & 1] = -2 - symbol
    following: list[int] = []
    symbols: list[int] = []
    for state in range(len(children)):
        for nibble in range(16):
            at, symbol = state, -1
            for shift in (3, 2, 1, 0):
                at = children[at][nibble >> shift & 1]
                if at < 0:
                    symbol, at = -2 - at, 0
            following.append(at)
            symbols.append(symbol)
    may_end = [False] * len(children)
    for state in _all_ones(children):
        may_end[state] = True
    return following, symbols, may_end


def _all_ones(children: list[list[int]]) -> Iterator[int]:
    """The states after zero to seven ones."""
    state = 0
    for _ in range(8):
        yield state
        state = children[state][1]


def decode(data: bytes) -> bytes:
    following, symbols, may_end = _steps()
    out = bytearray()
    state = 0
    for byte in data:
        step = state << 4 | byte >> 4
        symbol = symbols[step]
        if symbol >= 0:
            if symbol == END:
                raise HuffmanError("the end symbol inside a string")
            out.append(symbol)
        step = following[step] << 4 | byte & 15
        symbol = symbols[step]
        if symbol >= 0:
            if symbol == END:
                raise HuffmanError("the end symbol inside a string")
            out.append(symbol)
        state = following[step]
    if not may_end[state]:
        raise HuffmanError("padding that is not a few ones")
    return bytes(out)
