"""How the columns of data files are coded: what Spark's and Arrow's Parquet writers are told.

Rule 1: a column in which hardly a value comes twice (`TableSpec.plain`) gets no dictionary.
Rule 2: in a column whose values come again only far below (`TableSpec.scattered`), such as `mid` in
        a file in the order of `k`, each value is kept once a file and numbered from there on. Both
        writers would rather give up that dictionary: Arrow's when it has grown to a megabyte,
        Spark's even on the first page, if that shows nothing twice. So the first page has to reach
        from the first event of every message into their second ones, and the dictionary has to have
        room. Without it `mid` alone is half of the file.
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
