"""A site with a service worker that receives pushes and tells the test of each.

What the worker does is in the text of the push: `throw…` makes its handler throw, `reject…` makes
its promise fail, `quiet…` shows no notification. `/s/NAME/` are registrations independent of each
other, so that each test has a subscription of its own.
"""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

RECEIVE_TIMEOUT_S = 15.0

PAGE = b"""<!doctype html>
<meta charset="utf-8">
<title>A site that subscribes</title>
<script>
const bytes = text =>
  Uint8Array.from(atob(text.replaceAll("-", "+").replaceAll("_", "/")), c => c.charCodeAt(0));

async function registration(name) {
  const made = await navigator.serviceWorker.register(`/s/${name}/worker.js`);
  for (let turn = 0; !made.active && turn < 200; turn++)
    await new Promise(later => setTimeout(later, 25));
  return made;
}

async function subscribe(name, key) {
  const options = {userVisibleOnly: true};
  if (key) options.applicationServerKey = bytes(key);
  const made = await registration(name);
  try {
    return (await made.pushManager.subscribe(options)).toJSON();
  } catch (error) {
    return {error: error.name};
  }
}

async function subscription(name) {
  const made = await registration(name);
  return (await made.pushManager.getSubscription())?.toJSON() ?? null;
}

async function unsubscribe(name) {
  const made = await registration(name);
  return await (await made.pushManager.getSubscription()).unsubscribe();
}
</script>
"""

WORKER = b"""
const name = location.pathname.split("/")[2];
const tell = (what, more) =>
  fetch("/told", {method: "POST", body: JSON.stringify({name, what, ...more})});

oninstall = () => skipWaiting();

onpush = event => {
  const text = event.data ? event.data.text() : null;
  const begins = word => text !== null && text.startsWith(word);
  const jobs = [tell("push", {text})];
  if (!begins("quiet")) jobs.push(registration.showNotification("a push"));
  if (begins("reject")) jobs.push(Promise.reject(new Error("as it was told to")));
  event.waitUntil(Promise.all(jobs));
  if (begins("throw")) throw new Error("as it was told to");
};

onpushsubscriptionchange = event =>
  event.waitUntil(tell("change", {renewed: !!event.newSubscription}));
"""

Told = dict[str, Any]


class Site:
    """Serves the page and keeps what the workers tell, from threads of its own."""

    def __init__(self) -> None:
        self._told: list[Told] = []
        self._news = threading.Condition()
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path == "/":
                    self._answer(200, "text/html", PAGE)
                elif self.path.endswith("/worker.js"):
                    self._answer(200, "text/javascript", WORKER)
                else:
                    self._answer(404, "text/plain", b"")

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                with site._news:
                    site._told.append(json.loads(body))
                    site._news.notify_all()
                self._answer(204, "text/plain", b"")

            def _answer(self, status: int, kind: str, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.send_header("Cache-Control", "no-store")
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 its name there
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    @property
    def other_origin(self) -> str:
        """Another site to the browser; also one that it trusts without TLS."""
        return f"http://localhost:{self._server.server_port}"

    def told(self, name: str, what: str = "push") -> list[Told]:
        with self._news:
            return [one for one in self._told if (one["name"], one["what"]) == (name, what)]

    def texts(self, name: str) -> list[str | None]:
        """Of all pushes that this worker has received, in order."""
        return [one["text"] for one in self.told(name)]

    def wait(
        self,
        name: str,
        what: str = "push",
        *,
        count: int = 1,
        timeout_s: float = RECEIVE_TIMEOUT_S,
    ) -> list[Told]:
        """Until there are `count`, and all of them."""
        deadline = time.monotonic() + timeout_s
        with self._news:
            while len(told := self.told(name, what)) < count:
                left_s = deadline - time.monotonic()
                assert left_s > 0, f"{count} times {what} of {name}, but {told}"
                self._news.wait(left_s)
            return told

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
