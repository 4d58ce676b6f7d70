"""Lock the npm senders again, without addresses.

npm leaves out where a package came from (`omit-lockfile-registry-resolved` in .npmrc) but keeps the
addresses where its authors ask for money; a lock file of ours names no host at all.
"""

import json
import subprocess
from typing import Any

from prepare_tests import SENDERS


def main() -> None:
    command = ["npm", "install", "--package-lock-only", "--ignore-scripts", "--loglevel=error"]
    subprocess.run(command, cwd=SENDERS, stdin=subprocess.DEVNULL, check=True)
    path = SENDERS / "package-lock.json"
    lock: dict[str, Any] = json.loads(path.read_text())
    for package in lock["packages"].values():
        package.pop("funding", None)
    path.write_text(json.dumps(lock, indent=2) + "\n")


if __name__ == "__main__":
    main()
