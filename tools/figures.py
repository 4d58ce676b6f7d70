"""Write the measured numbers of docs/figures.toml into docs/performance.md and docs/scale.md.

performance.md has one table for each group of figures, between `<!-- figures: GROUP -->` and
`<!-- end -->`. scale.md has computed values as `<!-- = EXPRESSION -->VALUE<!-- end -->`: the
expression may use every figure (`push.direct`) and arithmetic.
"""

import ast
import operator
import re
import sys
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
FIGURES: Final = ROOT / "docs" / "figures.toml"
PAGES: Final = (ROOT / "docs" / "performance.md", ROOT / "docs" / "scale.md")
TABLE: Final = re.compile(r"(<!-- figures: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
COMPUTED: Final = re.compile(r"(<!-- = ([^>]+?) -->)[^<]*(<!-- end -->)")
OPERATORS: Final[Mapping[type[ast.operator], Callable[[float, float], float]]] = {
    ast.Add: operator.add,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}

Figures = dict[str, dict[str, dict[str, Any]]]


def load() -> Figures:
    return tomllib.loads(FIGURES.read_text(encoding="utf-8"))


def table(rows: Mapping[str, Mapping[str, Any]]) -> str:
    lines = ["| what | measured | bar | commit |", "|---|---:|---|---|"]
    for row in rows.values():
        measured = f"{row['value']:,} {row['unit']}"
        lines.append(f"| {row['name']} | {measured} | {row.get('bar', '')} | {row['commit']} |")
    return "\n".join(lines) + "\n"


def evaluate(expression: str, figures: Figures) -> float:
    """The value of an arithmetic expression over figures; anything else raises ValueError."""

    def value(node: ast.expr) -> float:
        match node:
            case ast.BinOp(left, op, right) if type(op) in OPERATORS:
                return OPERATORS[type(op)](value(left), value(right))
            case ast.Attribute(ast.Name(group), name):
                return float(figures[group][name]["value"])
            case ast.Constant(int() | float() as number):
                return float(number)
            case _:
                raise ValueError(f"{expression!r} is not arithmetic over docs/figures.toml")

    return value(ast.parse(expression, mode="eval").body)


def two_digits(value: float) -> str:
    """Rounded to two significant digits, so that a computed rate does not look measured."""
    if value < 10:
        return f"{value:.1f}"
    digits = len(str(int(value))) - 2
    return f"{round(value, -digits):,.0f}"


def render(page: str, figures: Figures) -> str:
    page = TABLE.sub(lambda found: found[1] + table(figures[found[2]]) + found[3], page)
    return COMPUTED.sub(
        lambda found: found[1] + two_digits(evaluate(found[2], figures)) + found[3], page
    )


def main() -> int:
    figures = load()
    for path in PAGES:
        path.write_text(render(path.read_text(encoding="utf-8"), figures), encoding="utf-8")
        print(f"{path.relative_to(ROOT)} is written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
