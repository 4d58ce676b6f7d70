"""The floor of presence: a bare grpc.aio handler that does the same fan-out and nothing else.

`python -m benchmarks.presence_bare [CERT KEY]` prints its port. It reads each message's type,
answers JOIN, PING and LEAVE, passes JOIN, LEAVE and SIGNAL on to the other streams of the party as
they are, and drops acks: no ids, no order, no retries, no timers, no store.
"""

import asyncio
import sys
from pathlib import Path
from typing import Any

import grpc
import uvloop

from waystation.presence.wire import party_presence_pb2 as pb
from waystation.presence.wire.party_presence_pb2 import ClientMessage

parties: dict[int, dict[int, "asyncio.Queue[bytes | None]"]] = {}


async def begin_stream(requests: Any, context: Any) -> None:
    outbox: asyncio.Queue[bytes | None] = asyncio.Queue()
    writer = asyncio.create_task(_write(context, outbox))
    party: dict[int, asyncio.Queue[bytes | None]] = {}
    me = 0
    try:
        async for data in requests:
            message = ClientMessage.FromString(data)
            kind = message.message_type
            if kind == pb.ACK:
                continue
            if kind == pb.JOIN:
                me = message.session_id
                party = parties.setdefault(message.party_id, {})
            ack = ClientMessage(message_type=pb.ACK, ack_message_ids=[message.message_id])
            outbox.put_nowait(ack.SerializeToString())
            if kind == pb.JOIN:
                listed = ClientMessage(message_type=pb.LIST, message_id=1, party_seq=1)
                outbox.put_nowait(listed.SerializeToString())
                party[me] = outbox
            if kind in {pb.JOIN, pb.LEAVE, pb.SIGNAL}:
                for other, box in party.items():
                    if other != me:
                        box.put_nowait(data)
            if kind == pb.LEAVE:
                break
    finally:
        if party.get(me) is outbox:
            del party[me]
        outbox.put_nowait(None)
        await writer


async def _write(context: Any, outbox: "asyncio.Queue[bytes | None]") -> None:
    try:
        while (data := await outbox.get()) is not None:
            await context.write(data)
    except (grpc.aio.AioRpcError, asyncio.InvalidStateError, grpc.RpcError):
        return


async def main(arguments: list[str]) -> None:
    server = grpc.aio.server()
    handler = grpc.stream_stream_rpc_method_handler(begin_stream)  # bytes in, bytes out
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("ClientMessagingEndpoint", {"beginStream": handler}),)
    )
    if arguments:
        cert, key = (Path(path).read_bytes() for path in arguments)
        credentials = grpc.ssl_server_credentials([(key, cert)])
        port = server.add_secure_port("127.0.0.1:0", credentials)
    else:
        port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(sys.argv[1:]))
