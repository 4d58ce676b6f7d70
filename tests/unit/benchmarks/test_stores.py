"""Which stores are measured: all that are here, or those that were asked for."""

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from benchmarks import stores
from benchmarks.stores import Place, places
from benchmarks.wire import LoadError


@contextmanager
def missing() -> Iterator[Place]:
    raise FileNotFoundError("no such program")
    yield


@contextmanager
def here() -> Iterator[Place]:
    yield Place("here", "memory:")


@pytest.fixture(autouse=True)
def _own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "OWN", {"here": here, "missing": missing})


def test_what_is_not_here_is_named_and_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    with contextlib.ExitStack() as stack:
        found = places([], stack)

    assert [place.name for place in found] == ["here"]
    assert "missing (no such program)" in capsys.readouterr().err


@pytest.mark.parametrize(
    "wanted, problem", [("missing", "cannot be had here"), ("elsewhere", "here, missing")]
)
def test_what_was_asked_for_by_name_must_be_here(wanted: str, problem: str) -> None:
    with contextlib.ExitStack() as stack, pytest.raises(LoadError, match=problem):
        places([wanted], stack)


def test_a_url_is_taken_as_it_is_and_shown_without_its_password() -> None:
    url = "postgres://me:secret@db.example/push?sslmode=require"
    with contextlib.ExitStack() as stack:
        (place,) = places([url], stack)

    assert place == Place("postgres://db.example/push", url)
