"""Two threads that wait for each other, but never for long."""

import threading

import pytest

from waystation.storage.embedded import stillness
from waystation.storage.embedded.stillness import Stillness


def test_the_loop_is_kept_until_the_writer_has_its_rows_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stillness, "STILL_MAX_S", 30.0)
    monkeypatch.setattr(stillness, "TURN_MAX_S", 30.0)
    still = Stillness()
    order: list[str] = []

    def loop() -> None:
        still.keep()
        order.append("loop")

    thread = threading.Thread(target=loop)
    thread.start()
    still.wait()
    order.append("rows")
    still.end()
    thread.join()

    assert order == ["rows", "loop"]


def test_a_loop_that_comes_when_the_rows_are_in_goes_on_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stillness, "STILL_MAX_S", 30.0)
    still = Stillness()
    still.end()
    thread = threading.Thread(target=still.keep)
    thread.start()
    thread.join(10)

    assert not thread.is_alive()


def test_nobody_waits_for_ever() -> None:
    still = Stillness()
    still.wait()  # for a loop that does not come
    still.keep()  # for rows that do not end
    still.end()
    thread = threading.Thread(target=still.wait)
    thread.start()
    thread.join(10)

    assert not thread.is_alive()
