"""Parquet options of Spark's and Arrow's writers, by the columns of a table.

A column whose values hardly ever repeat (`TableSpec.plain`) gets no dictionary.

A column whose values repeat only far below (`TableSpec.scattered`), such as `mid` in a file in the
order of `k`, needs a large dictionary page; without a dictionary `mid` alone is half of the file.
Both writers give up a dictionary early by default: Arrow's at a megabyte, Spark's on the first page
if no value repeats there. So the first page has to reach from the first event of every message to
its second one.
"""

from typing import Any

from waystation.pipeline.schema import TableSpec

# A fifth to a third of the events are the first of their message, so the first page of a file of a
# million rows, as large as files are meant to be, shows repetitions. Readers hold a page in memory.
PAGE_ROWS_MAX = 256 << 10
PAGE_BYTES_MAX = 16 << 20  # such a page of `mid`, before it is coded, is 9 MiB
DICTIONARY_BYTES_MAX = 16 << 20  # of `mid`: 466,000 messages


def spark_options(spec: TableSpec) -> dict[str, str]:
    """For the writer of a frame; codec and types come with the session."""
    told = {f"parquet.enable.dictionary#{name}": "false" for name in spec.plain}
    if spec.scattered:  # these cannot be told for single columns
        told |= {
            "parquet.page.row.count.limit": str(PAGE_ROWS_MAX),
            "parquet.page.size": str(PAGE_BYTES_MAX),
            "parquet.dictionary.page.size": str(DICTIONARY_BYTES_MAX),
        }
    return told


def arrow_options(spec: TableSpec) -> dict[str, Any]:
    """For `pyarrow.parquet.write_table`, codec and all."""
    told: dict[str, Any] = {
        "compression": "zstd",
        "use_dictionary": [name for name in spec.data.names if name not in spec.plain],
        "store_schema": False,  # a type of Arrow's own is nothing that other readers know
    }
    if spec.scattered:
        told["dictionary_pagesize_limit"] = DICTIONARY_BYTES_MAX
    return told
