"""A client of the protocol on h2, an HTTP/2 of others: it shares no code with us or with gRPC."""

import gzip
import socket
import struct
from types import TracebackType
from typing import Self

import h2.config
import h2.connection
import h2.events

from waystation.presence.wire.party_presence_pb2 import ClientMessage

PATIENCE_S = 20.0


class H2Client:
    """One connection; any number of calls on it."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
        self._h2 = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
        self._h2.initiate_connection()
        self._data: dict[int, bytes] = {}
        self.trailers: dict[int, dict[str, str]] = {}
        self._flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._socket.close()

    def open(
        self, path: str = "/ClientMessagingEndpoint/beginStream", *headers: tuple[str, str]
    ) -> int:
        stream_id = self._h2.get_next_available_stream_id()
        self._data[stream_id] = b""
        self._h2.send_headers(
            stream_id,
            [
                (":method", "POST"),
                (":scheme", "http"),
                (":path", path),
                (":authority", "localhost"),
                ("te", "trailers"),
                ("content-type", "application/grpc+proto"),
                ("user-agent", "by-hand"),
                *headers,
            ],
        )
        self._flush()
        return stream_id

    def say(self, stream_id: int, **fields: object) -> None:
        text = ClientMessage(**fields).SerializeToString()  # type: ignore[arg-type]
        self._h2.send_data(stream_id, struct.pack(">BI", 0, len(text)) + text)
        self._flush()

    def say_compressed(self, stream_id: int, **fields: object) -> None:
        text = gzip.compress(ClientMessage(**fields).SerializeToString())  # type: ignore[arg-type]
        self._h2.send_data(stream_id, struct.pack(">BI", 1, len(text)) + text)
        self._flush()

    def hear(self, stream_id: int) -> ClientMessage:
        while True:
            data = self._data[stream_id]
            if len(data) >= 5:
                (length,) = struct.unpack(">I", data[1:5])
                if len(data) >= 5 + length:
                    self._data[stream_id] = data[5 + length :]
                    return ClientMessage.FromString(data[5 : 5 + length])
            self._read()

    def end_of(self, stream_id: int) -> dict[str, str]:
        while "grpc-status" not in self.trailers.get(stream_id, {}):
            self._read()
        return self.trailers[stream_id]

    def _read(self) -> None:
        data = self._socket.recv(65_536)
        assert data, "the server has hung up"
        for event in self._h2.receive_data(data):
            if isinstance(event, h2.events.DataReceived):
                assert event.stream_id is not None
                self._data[event.stream_id] += event.data or b""
                self._h2.acknowledge_received_data(
                    event.flow_controlled_length or 0, event.stream_id
                )
            elif isinstance(event, h2.events.TrailersReceived | h2.events.ResponseReceived):
                assert event.stream_id is not None
                found = {str(name): str(value) for name, value in event.headers or ()}
                self.trailers[event.stream_id] = found
        self._flush()

    def _flush(self) -> None:
        self._socket.sendall(self._h2.data_to_send())
