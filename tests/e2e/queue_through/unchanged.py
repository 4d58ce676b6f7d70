"""Tests of one server, collected once more with other fixtures."""

from collections.abc import Collection
from types import ModuleType

from _pytest.fixtures import FixtureFunctionDefinition


def all_of(module: ModuleType, *, but: Collection[str] = ()) -> dict[str, object]:
    """Everything of it that pytest looks for, but what is left out by name."""
    found = {
        name: one
        for name, one in vars(module).items()
        if name.startswith("test_") or isinstance(one, FixtureFunctionDefinition)
    }
    unknown = set(but) - found.keys()
    assert not unknown, f"{module.__name__} has no {unknown}"
    return {name: one for name, one in found.items() if name not in but}
