"""Parses numbers of peers, and formats numbers for people."""


def parse_number(text: str, most: int) -> int | None:
    """Decimal ASCII digits, from 0 to `most`; None for everything else, however long it is."""
    if not (text.isascii() and text.isdecimal()) or len(text) > len(str(most)):
        return None
    number = int(text)
    return number if number <= most else None


def significant(value: float, digits: int) -> str:
    """`value` with `digits` significant digits, without exponent from 0.0001 on: 60,000, not
    6e+04."""
    text = f"{value:.{digits}g}"
    return f"{float(text):,.0f}" if "e+" in text else text
