"""Kill both sides; count what is missing.

python run.py
"""

import asyncio
import tempfile
from pathlib import Path

from waystation.client.appserver import AppServer
from waystation.client.local_server import LocalServer
from waystation.client.push import UserAgent
from waystation.client.subscriptions import StateFile
from waystation.client.vapid import VapidKey


async def walk(server: LocalServer, state: StateFile) -> None:
    vapid = VapidKey.generate()
    async with AppServer(vapid) as app_server:
        # A user agent subscribes. Who it is and its keys are in a file of mode 0600.
        async with UserAgent(server.ws_url, state_file=state) as agent:
            subscription = await agent.subscribe(vapid.public_text)

        # It is away; what is posted now is on disk before it is answered.
        expected: set[str] = set()
        for number in range(10):
            text = f"while away {number}"
            await app_server.send(subscription.endpoint, subscription.public_keys, text, ttl_s=3600)
            expected.add(text)

        # It comes back and is given them all, and one more, directly; it acks none.
        async with UserAgent(server.ws_url, state_file=state, auto_ack=False) as agent:
            for _ in range(10):
                await agent.receive()
            await app_server.send(
                subscription.endpoint, subscription.public_keys, "direct", ttl_s=3600
            )
            expected.add((await agent.receive()).text)
            print(f"delivered, not acked: {len(expected)}; now kill -9")
            await asyncio.to_thread(server.kill)

        await asyncio.to_thread(server.start)
        async with UserAgent(server.ws_url, state_file=state) as agent:
            while expected:
                expected.discard((await agent.receive()).text)
        print("after the restart: all of them arrived again")


def main() -> None:
    with tempfile.TemporaryDirectory() as where, LocalServer(Path(where) / "data") as server:
        state = StateFile(Path(where) / "agent.json")
        asyncio.run(asyncio.wait_for(walk(server, state), 60))


if __name__ == "__main__":
    main()
