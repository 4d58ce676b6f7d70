"""Parquet options of Spark's and Arrow's writers, by the columns of a table.

A column with hardly any repeated value (`TableSpec.plain`) gets no dictionary.

A column whose values repeat far apart (`TableSpec.scattered`), such as `mid` in a file ordered by
`k`, needs a large dictionary page; without a dictionary `mid` alone is half of the file. By default
both writers give up a dictionary early: Arrow's at a megabyte, Spark's after a first page without
repetitions. So the first page must contain the first and the second event of some messages.
"""

from typing import Any

from waystation.pipeline.schema import TableSpec

# A fifth to a third of the events are the first of their message, so the first page of a file of a
# million rows (the intended size) has repetitions. Readers hold a page in memory.
PAGE_ROWS_MAX = 256 << 10
PAGE_BYTES_MAX = 16 << 20  # such a page of `mid` has 9 MiB before encoding
DICTIONARY_BYTES_MAX = 16 << 20  # of `mid`: 466,000 messages


def spark_options(spec: TableSpec) -> dict[str, str]:
    """Options for the writer of a frame; the session sets codec and types."""
    told = {f"parquet.enable.dictionary#{name}": "false" for name in spec.plain}
    if spec.scattered:  # Spark has no per-column setting for these
        told |= {
            "parquet.page.row.count.limit": str(PAGE_ROWS_MAX),
            "parquet.page.size": str(PAGE_BYTES_MAX),
            "parquet.dictionary.page.size": str(DICTIONARY_BYTES_MAX),
        }
    return told


def arrow_options(spec: TableSpec) -> dict[str, Any]:
    """Options for `pyarrow.parquet.write_table`, including the codec."""
    told: dict[str, Any] = {
        "compression": "zstd",
        "use_dictionary": [name for name in spec.data.names if name not in spec.plain],
        "store_schema": False,  # other readers do not know Arrow's own types
    }
    if spec.scattered:
        told["dictionary_pagesize_limit"] = DICTIONARY_BYTES_MAX
    return told
