"""Lock what the tests take from npm again, without addresses.

npm leaves out where a package came from (`omit-lockfile-registry-resolved` in .npmrc) but keeps the
addresses where its authors ask for money; a lock file of ours names no host at all.
"""

import json
import subprocess
from pathlib import Path
from typing import Any

from prepare_tests import PARTY_IN_NODE, SENDERS, SERVERS


def lock(folder: Path) -> None:
    command = ["npm", "install", "--package-lock-only", "--ignore-scripts", "--loglevel=error"]
    subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, check=True)
    path = folder / "package-lock.json"
    locked: dict[str, Any] = json.loads(path.read_text())
    for package in locked["packages"].values():
        package.pop("funding", None)
    path.write_text(json.dumps(locked, indent=2) + "\n")


def main() -> None:
    for folder in (SENDERS, SERVERS, PARTY_IN_NODE):
        lock(folder)


if __name__ == "__main__":
    main()
