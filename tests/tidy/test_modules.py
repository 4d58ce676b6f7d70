"""Modules of src say what they are for and have names that say something."""

import ast
import re

from tests.tidy.repository import SRC, listed, parsed, python_files, relative

VAGUE = re.compile(r"^(utils?|helpers?|common|misc|managers?)([_.].*)?$")


def test_every_module_says_in_its_first_line_what_it_is_for() -> None:
    silent: list[str] = []
    for path in python_files(SRC):
        tree = parsed(path)
        if not tree.body:
            continue  # an empty __init__.py only marks a folder
        first_line = (ast.get_docstring(tree) or "").partition("\n")[0]
        if not first_line.endswith("."):
            silent.append(f"{relative(path)}: {first_line!r}")

    assert not silent, listed(
        "the first line of a module is a sentence and ends with a period", silent
    )


def test_every_name_says_something() -> None:
    vague = [
        relative(path)
        for path in python_files(SRC)
        if any(VAGUE.match(part) for part in path.relative_to(SRC).parts)
    ]

    assert not vague, listed("the thing has a name, use it", vague)
