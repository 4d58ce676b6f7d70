"""A user agent that speaks SimplePush, and what becomes of updates that are sent to it."""

import json
from pathlib import Path
from typing import Any

from tests.e2e.platform import Serve
from tests.e2e.wire_clients import Answer, Message, UserAgent, http
from tests.oracle import fold as oracle
from tests.unit.waiting import until
from waystation.telemetry import contract

FORM = {"Content-Type": "application/x-www-form-urlencoded"}


class OldAgent(UserAgent):
    """A user agent of the first generation."""

    async def hello(self, **fields: Any) -> Message:
        message = {"messageType": "hello", "uaid": self.uaid, "channelIDs": [], **fields}
        await self.send(message)
        reply = await self.expect("hello")
        self.uaid = reply["uaid"]
        return reply

    async def updates(self) -> list[Message]:
        message = await self.expect("notification")
        assert set(message) == {"messageType", "updates"}
        return message["updates"]

    async def ack_updates(self, *updates: Message) -> None:
        plain = [{"channelID": one["channelID"], "version": one["version"]} for one in updates]
        await self.send({"messageType": "ack", "updates": plain})


async def put(endpoint: str, body: str = "", **headers: str) -> Answer:
    return await http("PUT", endpoint, {**FORM, **headers}, body.encode())


def ends(spool: Path) -> list[int]:
    """The last milestone of each message in the funnel, as they were received."""
    blank = dict.fromkeys(contract.COLUMNS)
    files = [file.read_bytes() for form in ("jsonl", "open") for file in spool.glob(f"*/*.{form}")]
    # The last line of an open segment may be written at this moment.
    lines = [line for text in files for line in text[: text.rfind(b"\n") + 1].splitlines()]
    rows = [
        dict(zip(oracle.COLUMNS, row, strict=True))
        for row in oracle.fold(blank | json.loads(line) for line in lines).values()
    ]
    return [row["last"] % 32 for row in sorted(rows, key=lambda row: row["t0"])]


async def ends_of_three(data_dir: Path, **settings: Any) -> list[int]:
    """Of an update that is sent to a connected user agent, of one that waits until a newer one
    replaces it, and of that one, which waits until the user agent is back."""
    with Serve(data_dir, workers=2, **settings) as server:
        async with OldAgent(server.ws_url) as agent:
            await agent.connect()
            endpoint = await agent.subscribe()
            await put(endpoint, "version=5")
            await agent.ack_updates(*await agent.updates())
            await agent.settled()
            await agent.leave()
            await put(endpoint, "version=6")
            await put(endpoint, "version=7")
            await agent.connect()
            await agent.ack_updates(*await agent.updates())
            # The store may still be asked to forget the update when later commands are answered.
            await until(lambda: ends(data_dir / "events")[2:] == [contract.DELIVERED])
        assert server.stop() == 0
    return ends(data_dir / "events")
