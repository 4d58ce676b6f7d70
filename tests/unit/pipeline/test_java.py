"""Which Java is taken, and what is done about one without the module that Spark asks for."""

import subprocess
from pathlib import Path

import pytest

from waystation.pipeline.java import NoJavaError, examine, find_java, home_for_spark


def make_home(folder: Path, version: str) -> Path:
    binary = folder / "bin" / "java"
    binary.parent.mkdir(parents=True)
    binary.write_text('#!/bin/sh\nfor word; do echo "<$word>"; done\n')
    binary.chmod(0o755)
    (folder / "release").write_text(f'JAVA_VERSION="{version}"\n')
    return folder


def test_the_order_is_own_variable_then_java_home_then_path(tmp_path: Path) -> None:
    ours, usual, path = (make_home(tmp_path / name, "17.0.1") for name in ("a", "b", "c"))
    env = {
        "WAYSTATION_JAVA_HOME": str(ours),
        "JAVA_HOME": str(usual),
        "PATH": str(path / "bin"),
    }

    assert find_java(None, env).home == ours
    del env["WAYSTATION_JAVA_HOME"]
    assert find_java(None, env).home == usual
    del env["JAVA_HOME"]
    assert find_java(None, env).home == path


def test_a_version_that_spark_does_not_know_is_passed_over(tmp_path: Path) -> None:
    old, good = make_home(tmp_path / "old", "1.8.0_402"), make_home(tmp_path / "good", "21.0.2")
    env = {"JAVA_HOME": str(old), "PATH": str(good / "bin")}

    assert (find_java(None, env).home, find_java(None, env).version) == (good, 21)
    with pytest.raises(NoJavaError, match=r"found Java 8 in .*openjdk-17-jre-headless"):
        find_java(old, env)


def test_a_folder_without_a_java_is_none(tmp_path: Path) -> None:
    assert examine(tmp_path) is None
    with pytest.raises(NoJavaError, match=r"found no Java in .*waystation\[pipeline-java\]"):
        find_java(tmp_path, {})


def test_a_java_is_started_without_the_module_that_it_may_not_have(tmp_path: Path) -> None:
    java = examine(make_home(tmp_path / "it's", "25.0.2"))
    assert java is not None

    home = home_for_spark(java, tmp_path / "scratch")
    command = [
        home / "bin" / "java",
        "-Xmx2g",
        "--add-modules=jdk.incubator.vector",
        "a b",
        "",
        "$",
    ]
    said = subprocess.run(command, capture_output=True, text=True, check=True)

    assert said.stdout.splitlines() == ["<-Xmx2g>", "<a b>", "<>", "<$>"]


def test_a_java_without_a_release_file_is_asked(tmp_path: Path) -> None:
    home = make_home(tmp_path / "java", "17")
    (home / "release").unlink()
    (home / "bin" / "java").write_text("#!/bin/sh\necho 'openjdk version \"21.0.2\"' >&2\n")

    java = examine(home)

    assert java is not None
    assert java.version == 21
