"""What a client of Kafka is told: the servers, and what stands in a file."""

from pathlib import Path

import pytest

from waystation.telemetry.kafka_topic import KafkaTopic, read_properties


def test_a_client_gets_the_servers_and_what_stands_in_the_file(tmp_path: Path) -> None:
    file = tmp_path / "kafka.properties"
    file.write_text("# of the test\n\nsasl.username = me\nsasl.password=a=b \n")

    assert KafkaTopic("a:1,b:2").client_config() == {"bootstrap.servers": "a:1,b:2"}
    assert KafkaTopic("a:1", config_file=str(file)).client_config() == {
        "bootstrap.servers": "a:1",
        "sasl.username": "me",
        "sasl.password": "a=b",
    }


def test_a_line_that_says_nothing_is_refused_with_its_number(tmp_path: Path) -> None:
    file = tmp_path / "kafka.properties"
    file.write_text("a = b\nsecret-without-a-name\n")

    with pytest.raises(ValueError, match="line 2: must have the form") as caught:
        read_properties(str(file))
    assert "secret" not in str(caught.value)
