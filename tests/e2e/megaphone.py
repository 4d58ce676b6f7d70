"""A Megaphone server for tests: the versions that it tells, and how often it was asked."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self


class Megaphone:
    """`GET /v1/broadcasts` on loopback, from a thread of its own."""

    def __init__(self) -> None:
        self.broadcasts: dict[str, str] = {}
        self.down = False
        self.asked = 0
        megaphone = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                megaphone.asked += 1
                status = 500 if megaphone.down else 200
                body = json.dumps({"code": status, "broadcasts": megaphone.broadcasts}).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 its name there
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/v1/broadcasts"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
