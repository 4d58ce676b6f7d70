"""A backend that notifies all its users, and keeps its list of subscriptions clean.

python run.py [ws://127.0.0.1:8080]
"""

import asyncio
import json
import sys

from waystation.base.errors import BusyError, GoneError, RejectedError
from waystation.client.appserver import AppServer
from waystation.client.encryption import PublicKeys
from waystation.client.push import UserAgent
from waystation.client.vapid import VapidKey


class Backend:
    """Yours has a database; this one a dict of what browsers sent (PushSubscription.toJSON())."""

    def __init__(self) -> None:
        # One key pair identifies your backend for good: VapidKey.load_or_create(Path("vapid.pem")).
        self.vapid = VapidKey.generate()
        self.subscriptions: dict[str, str] = {}

    async def notify_all(self, text: str) -> None:
        async with AppServer(self.vapid, subject="mailto:ops@example.org") as app_server:
            for user, saved in list(self.subscriptions.items()):
                subscription = json.loads(saved)
                try:
                    await app_server.send(
                        subscription["endpoint"],
                        PublicKeys.from_json(subscription["keys"]),
                        text,
                        ttl_s=86_400,  # worth having for a day
                        topic="headline",  # a newer one replaces it while it waits
                        attempts=3,  # come back when the server is busy, not before it says
                    )
                    print(f"{user}: sent")
                except GoneError:
                    del self.subscriptions[user]  # never use it again
                    print(f"{user}: gone, forgotten")
                except BusyError as busy:
                    print(f"{user}: busy, try again in {busy.retry_after_s or 60:.0f} s")
                except RejectedError as rejected:
                    print(f"{user}: our mistake: {rejected}")


async def main(url: str) -> None:
    backend = Backend()
    async with UserAgent(url) as ada, UserAgent(url) as ben:
        for name, browser in (("ada", ada), ("ben", ben)):
            subscription = await browser.subscribe(backend.vapid.public_text)
            backend.subscriptions[name] = json.dumps(subscription.to_json())

        await backend.notify_all("first headline")
        print("ada reads:", (await ada.receive()).text)
        print("ben reads:", (await ben.receive()).text)

        await ben.unsubscribe(next(iter(ben.subscriptions)))
        await backend.notify_all("second headline")
        print("ada reads:", (await ada.receive()).text)
        print("subscribed now:", ", ".join(backend.subscriptions))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "ws://127.0.0.1:8080"))
