"""Numbers that peers write, and numbers that people read."""


def parse_number(text: str, most: int) -> int | None:
    """Decimal ASCII digits, from 0 to `most`; None for everything else, however long it is."""
    if not (text.isascii() and text.isdecimal()) or len(text) > len(str(most)):
        return None
    number = int(text)
    return number if number <= most else None


def significant(value: float, digits: int) -> str:
    """With so many significant digits, and never in the notation of powers of ten for values from
    0.0001 on: 60,000 and not 6e+04."""
    text = f"{value:.{digits}g}"
    return f"{float(text):,.0f}" if "e+" in text else text
