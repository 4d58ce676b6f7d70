"""Entry point for `spark-submit`: `waystation pipeline` with the profile `cluster`.

spark-submit --master … src/waystation/cli/submit.py --lake s3://bucket/lake run
"""

import sys
from pathlib import Path


def main() -> None:
    # spark-submit puts this folder first on the path, where our modules would hide others.
    sys.path[:] = [path for path in sys.path if Path(path) != Path(__file__).parent]
    from waystation.cli.pipeline import app

    app(prog_name="waystation pipeline", args=["--profile", "cluster", *sys.argv[1:]])


if __name__ == "__main__":
    main()
