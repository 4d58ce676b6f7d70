"""What the pipeline does without: pandas, which many parts of PySpark would load."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_the_suite_runs_where_there_is_no_pandas() -> None:
    locked = (ROOT / "requirements" / "dev.lock").read_text()

    assert "\npyspark==" in locked
    assert "\npandas==" not in locked
    assert "\nnumpy==" not in locked


def test_settings_and_command_are_read_without_spark() -> None:
    """A server and `--help` must not wait for what only jobs need."""
    look = (
        "import sys, waystation.app.settings, waystation.cli.pipeline;"
        "print([m for m in ('pyspark', 'pyarrow', 'deltalake', 'pandas') if m in sys.modules])"
    )
    said = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)

    assert said.stdout == "[]\n"
