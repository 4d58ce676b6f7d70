"""Write the Python code of the .proto files of presence, beside them.

The generated files are committed, so that an installation needs no compiler. They carry no import
path of ours: each .proto stands alone, and its name in the descriptor pool is its file name.

usage: tools/protos.py
"""

import re
import sys
from pathlib import Path

from grpc_tools import protoc

WIRE = Path(__file__).resolve().parent.parent / "src" / "waystation" / "presence" / "wire"
FILES = ("party_presence.proto", "presence_cluster.proto")


def main() -> int:
    for name in FILES:
        arguments = [
            "protoc",
            f"-I{WIRE}",
            f"--python_out={WIRE}",
            f"--pyi_out={WIRE}",
            name,
        ]
        if protoc.main(arguments):
            return 1
        stub = WIRE / name.replace(".proto", "_pb2.pyi")
        # The compiler leaves these open, which a strict type checker objects to at every call.
        stub.write_text(re.sub(r"\b_Mapping\](?!\[)", "_Mapping[str, object]]", stub.read_text()))
    print(f"{len(FILES)} files of {WIRE.name}/ are compiled")
    return 0


if __name__ == "__main__":
    sys.exit(main())
