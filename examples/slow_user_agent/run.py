"""A user agent that takes its time, and a sender who does not notice.

python run.py [ws://127.0.0.1:8080]
"""

import asyncio
import sys
import time

from waystation.client.appserver import AppServer
from waystation.client.push import UserAgent
from waystation.client.vapid import VapidKey

COUNT = 300  # more than a node keeps in flight for one user agent
WORK_S = 0.002


async def main(url: str) -> None:
    vapid = VapidKey.generate()
    async with UserAgent(url, auto_ack=False) as agent, AppServer(vapid) as app_server:
        subscription = await agent.subscribe(vapid.public_text)

        async def send_all() -> None:
            began = time.monotonic()
            for number in range(COUNT):
                await app_server.send(
                    subscription.endpoint, subscription.public_keys, str(number), ttl_s=3600
                )
            print(f"sender: {COUNT} posts answered 201 in {time.monotonic() - began:.1f} s")

        sending = asyncio.create_task(send_all())
        seen: set[int] = set()
        began = time.monotonic()
        async for received in agent:
            await asyncio.sleep(WORK_S)  # what your handler does
            await agent.ack(received)  # only now it is done; until here the node keeps it
            seen.add(int(received.text))
            if len(seen) == COUNT:
                break
        await sending
        print(f"reader: all {len(seen)} arrived after {time.monotonic() - began:.1f} s")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "ws://127.0.0.1:8080"))
