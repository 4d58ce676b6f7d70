"""The Kafka topic of event lines: servers, name and client settings.

Imports no Kafka client: that package is an optional extra of the writer and the reader.
"""

from pathlib import Path

import msgspec

TOPIC = "events"


class KafkaTopic(msgspec.Struct, frozen=True):
    servers: str  # host:port, several with commas
    name: str = TOPIC
    config_file: str = ""  # what else a client needs, passwords too; so it is never in a plan

    def client_config(self) -> dict[str, str]:
        """Settings for a client of librdkafka: those of the file, and the servers."""
        return {**read_properties(self.config_file), "bootstrap.servers": self.servers}


def read_properties(path: str) -> dict[str, str]:
    """`name = value` lines; blank ones and those that begin with # say nothing."""
    if not path:
        return {}
    found: dict[str, str] = {}
    for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), 1):
        name, equals, value = line.partition("=")
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if not equals or not name.strip():
            raise ValueError(f"{path}, line {number}: not of the form name = value")
        found[name.strip()] = value.strip()
    return found
