"""How Arrow's writer is told to code the columns of a table; Spark's is asked in tests/pipeline."""

import hashlib
from importlib import import_module
from pathlib import Path
from typing import Any

from waystation.pipeline.files import Files
from waystation.pipeline.parquet_options import DICTIONARY_BYTES_MAX, arrow_options, spark_options
from waystation.pipeline.schema import EVENTS, MSG

MESSAGES = 40_000  # more than a dictionary of a megabyte holds

arrow: Any = import_module("pyarrow")
parquet: Any = import_module("pyarrow.parquet")


def test_an_id_that_comes_again_far_below_is_in_the_file_once(tmp_path: Path) -> None:
    ids = [hashlib.sha256(b"%d" % at).hexdigest()[:32] for at in range(MESSAGES)]
    events = arrow.table({"mid": ids * 2, "ts": list(range(2 * MESSAGES))})

    Files(str(tmp_path)).write_table("hour/part.parquet", events, **arrow_options(EVENTS))

    group = parquet.read_metadata(tmp_path / "hour/part.parquet").row_group(0)
    mid, ts = group.column(0), group.column(1)
    # 16 random bytes, in hex digits, are 18 bytes in zstd; twice, they would be 36.
    assert mid.total_compressed_size < 24 * MESSAGES
    assert mid.has_dictionary_page
    assert not ts.has_dictionary_page
    assert mid.compression == ts.compression == "ZSTD"


def test_pages_are_large_only_where_values_lie_scattered() -> None:
    assert spark_options(EVENTS)["parquet.dictionary.page.size"] == str(DICTIONARY_BYTES_MAX)
    assert spark_options(MSG) == {}
    assert "dictionary_pagesize_limit" not in arrow_options(MSG)
