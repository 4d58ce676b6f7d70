"""A site of one page that asks a browser for a subscription, and a backend that pushes to it.

python run.py [PORT]
"""

import asyncio
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from waystation.client.appserver import AppServer
from waystation.client.encryption import PublicKeys
from waystation.client.vapid import VapidKey

# Yours keeps it for good, because subscriptions are bound to it:
# VapidKey.load_or_create(Path("vapid.pem"))
VAPID = VapidKey.generate()
TEXT = "hello from your own server"

PAGE = """<!doctype html>
<meta charset="utf-8">
<title>Notify a browser</title>
<p><button onclick="subscribe()">Send me a notification</button> <span id="state"></span></p>
<script>
const key = Uint8Array.from(
  atob("PUBLIC_KEY".replaceAll("-", "+").replaceAll("_", "/")), c => c.charCodeAt(0));

async function subscribe() {
  const said = document.getElementById("state");
  if (await Notification.requestPermission() !== "granted") {
    said.textContent = "The browser may not show notifications of this site.";
    return;
  }
  await navigator.serviceWorker.register("/worker.js");
  const registration = await navigator.serviceWorker.ready;
  await (await registration.pushManager.getSubscription())?.unsubscribe();  // of an earlier run
  const subscription = await registration.pushManager.subscribe(
    {userVisibleOnly: true, applicationServerKey: key});
  await fetch("/subscribed", {method: "POST", body: JSON.stringify(subscription)});
  said.textContent = "Subscribed at " + new URL(subscription.endpoint).host;
}
</script>
"""

WORKER = """
oninstall = () => skipWaiting();
onpush = event => event.waitUntil(Promise.all([
  registration.showNotification(event.data.text()),
  fetch("/shown", {method: "POST", body: event.data.text()}),
]));
"""

sent, shown = threading.Event(), threading.Event()


async def push(subscription: dict[str, object]) -> None:
    async with AppServer(VAPID, subject="mailto:you@example.org") as app_server:
        receipt = await app_server.send(
            str(subscription["endpoint"]),
            PublicKeys.from_json(subscription["keys"]),  # type: ignore[arg-type]
            TEXT,
            ttl_s=60,
        )
    print(f"sent: {receipt.status}", flush=True)
    sent.set()


class Site(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/worker.js":
            self.answer("text/javascript", WORKER)
        else:
            self.answer("text/html", PAGE.replace("PUBLIC_KEY", VAPID.public_text))

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.answer("text/plain", "")
        if self.path == "/subscribed":
            subscription = json.loads(body)
            print(f"subscribed: {subscription['endpoint'][:48]}…", flush=True)
            asyncio.run(push(subscription))
        else:
            print(f"shown: {body}", flush=True)
            shown.set()

    def answer(self, kind: str, text: str) -> None:
        body = text.encode()
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 its name there
        pass


def main(port: int) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", port), Site)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    # A browser trusts this address without TLS.
    print(f"open in Firefox: http://localhost:{server.server_port}/", flush=True)
    sent.wait()
    shown.wait()
    server.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 8090)
