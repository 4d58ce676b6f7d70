"""The Kafka topic of event lines: servers, name and client settings.

Imports no Kafka client: that package is an optional extra of the writer and the reader.
"""

from pathlib import Path

import msgspec

TOPIC = "events"


class KafkaTopic(msgspec.Struct, frozen=True):
    servers: str  # host:port, several with commas
    name: str = TOPIC
    config_file: str = (
        ""  # further client settings, also passwords; so its contents are never in a query plan
    )

    def client_config(self) -> dict[str, str]:
        """Settings for librdkafka: those of the file, and the servers."""
        return {**read_properties(self.config_file), "bootstrap.servers": self.servers}


def read_properties(path: str) -> dict[str, str]:
    """Reads `name = value` lines; blank lines and lines that begin with # are ignored."""
    if not path:
        return {}
    found: dict[str, str] = {}
    for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), 1):
        name, equals, value = line.partition("=")
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if not equals or not name.strip():
            raise ValueError(f"{path}, line {number}: must have the form name = value")
        found[name.strip()] = value.strip()
    return found
