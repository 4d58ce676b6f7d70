"""The files of this repository, as the tidy tests see them."""

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SRC = ROOT / "src" / "waystation"
TESTS = ROOT / "tests"

# Written by programs, here or elsewhere: nobody reads or edits them by hand.
GENERATED = ("_pb2.py", "_pb2_grpc.py", "_pb2.pyi")
NOT_OURS = {".git", ".venv", "node_modules", "__pycache__", "waystation-data", "dist", "build"}
TEXTS = {".py", ".pyi", ".md", ".toml", ".lock", ".json", ".js", ".mjs", ".html", ".css", ".proto"}
TEXTS |= {".in", ".sh", ".yml", ".yaml", ".cnf", ".service", ".txt", ""}


def files(root: Path) -> Iterator[Path]:
    """Every file of ours under `root`; hidden folders of tools are left out."""
    for path in sorted(root.iterdir()):
        if path.name in NOT_OURS or path.name.endswith((".egg-info", "_cache")):
            continue
        if path.is_dir():
            if not path.name.startswith(".") or path.name == ".ci":
                yield from files(path)
        elif not path.name.endswith(GENERATED):
            yield path


def python_files(*roots: Path) -> list[Path]:
    return [path for root in roots for path in files(root) if path.suffix == ".py"]


def text_files() -> list[Path]:
    return [path for path in files(ROOT) if path.suffix in TEXTS]


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def listed(advice: str, found: Iterable[object]) -> str:
    """A message that shows everything found: pytest itself shortens long lists."""
    return "\n  ".join([advice, *map(str, found)])
