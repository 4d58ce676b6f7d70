"""`waystation queue`: a client of SMP servers in the terminal."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from . import queue_runner as work
from .queue_output import MODES, show_json, show_queue
from .terminal import complain, give_up, harmless, say

app = typer.Typer(
    help="""Create one-way queues on an SMP server, send and receive.

    A queue carries messages from any holder of its address to its owner. The server sees neither
    names nor accounts. SMP itself does not encrypt from sender to recipient: these commands encrypt
    every text for the key in the address, so that the server cannot read it, but without a ratchet:
    the state file decrypts earlier messages too. The protocols of chat applications on this network
    are not supported.
    """,
    no_args_is_help=True,
    rich_markup_mode=None,
)

StateOption = Annotated[
    Path | None,
    typer.Option("--state", help="File with your queues and their private keys (mode 0600)."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object a line.")]
QrOption = Annotated[
    bool | None, typer.Option("--qr/--no-qr", help="Print a QR code; default: on a terminal only.")
]
NameArgument = Annotated[str, typer.Argument(metavar="NAME", show_default=False)]
ProxyOption = Annotated[
    str,
    typer.Option(
        help="Address of another server to send through: the queue's server does not learn your"
        " address, and the other one not your recipient."
    ),
]


@app.command()
def new(
    name: Annotated[str, typer.Argument(help="Name of the queue; default: inbox1, inbox2 …")] = "",
    *,
    server: Annotated[
        str,
        typer.Option(
            help="smp://FINGERPRINT[:PASSWORD]@HOST[:PORT]; default: the server of your last"
            " queue, or that of --data-dir."
        ),
    ] = "",
    contact: Annotated[
        bool,
        typer.Option(
            "--contact",
            help="Make an address for many senders; default: for the first sender only.",
        ),
    ] = False,
    link: Annotated[
        str | None,
        typer.Option(help="Text of a short link, made instead of the long address."),
    ] = None,
    data_dir: Annotated[
        Path,
        typer.Option(
            "--data-dir", help="Data directory of a server on this machine, for its address."
        ),
    ] = Path("waystation-data"),
    qr: QrOption = None,
    json: JsonOption = False,
    state: StateOption = None,
) -> None:
    """Create a queue and print its address for senders."""
    file = work.kept_file(state)

    async def step() -> None:
        from waystation.client.queue.error_replies import AuthError
        from waystation.client.queue.queue_file import SavedQueue

        kept = file.load()
        chosen = kept.claim(name or kept.free_name("inbox"))
        async with work.client_of(work.server_of(server, kept, data_dir)) as client:
            try:
                queue = await client.create(
                    mode="C" if contact else "M", subscribe=False, link_text=link
                )
            except AuthError:
                give_up(
                    "the server does not let us make queues; if it has a password for that, it"
                    " belongs in the address: smp://FINGERPRINT:PASSWORD@HOST"
                )
        with file.changing() as kept:
            kept.queues[kept.claim(chosen)] = SavedQueue(queue)
        show_queue(chosen, kept, qr=qr, json=json)

    work.run(step)


@app.command()
def send(
    to: Annotated[
        str,
        typer.Argument(metavar="TO", help="An address, a short link, or a name given before."),
    ],
    text: Annotated[str, typer.Argument(help="`-` reads it from stdin.")] = "-",
    *,
    name: Annotated[str, typer.Option(help="Keep the queue under this name.")] = "",
    notify: Annotated[
        bool, typer.Option("--notify", help="Request a push notification to the recipient.")
    ] = False,
    plain: Annotated[
        bool, typer.Option("--plain", help="Do not encrypt: the server can read the text.")
    ] = False,
    again: Annotated[
        bool,
        typer.Option(
            "--again", help="Repeat the message if the answer is lost; it may arrive twice."
        ),
    ] = False,
    proxy: ProxyOption = "",
    timeout: Annotated[float, typer.Option(min=0, help="Seconds to wait for a connection.")] = 10,
    state: StateOption = None,
) -> None:
    """Send TEXT to a queue.

    Returns once the server has it on disk. The first message to a queue for one sender secures it
    with a key of yours, so that nobody else can send. Exit code 3: the queue is gone, or not
    yours to send to; 75: full, or no connection.
    """
    file = work.kept_file(state)

    async def step() -> None:
        from waystation.client.queue.envelope import seal_message

        body = sys.stdin.buffer.read() if text == "-" else text.encode()
        chosen = await work.sender(file, to, name, proxy)
        kept = file.load().senders[chosen]
        if not plain:
            body = seal_message(body, kept.address.dh, kept.sealing_key)
        async with work.client_of(work.via(kept.address.server, proxy), timeout) as client:
            way = work.way(client, kept.address.server)
            if not kept.secured and kept.sender.key is not None:
                await way.secure_as_sender(kept.sender)
                work.mark_secured(file, chosen)
            await way.send(kept.sender, body, notify=notify, again=again)

    work.run(step)


@app.command("open")
def open_(
    link: Annotated[str, typer.Argument(metavar="LINK", help="A short link, smp://…/i#… or /c#…")],
    *,
    name: Annotated[str, typer.Option(help="Keep the queue under this name.")] = "",
    proxy: ProxyOption = "",
    state: StateOption = None,
) -> None:
    """Print the text of a short link and keep its queue. An invitation is then bound to you."""
    file = work.kept_file(state)

    async def step() -> None:
        from waystation.client.queue.address import LinkAddress

        chosen, shown = await work.follow(file, LinkAddress.parse(link), name, proxy)
        say(f"text       {harmless(shown)}")
        say(f"try        waystation queue send {chosen} hello")

    work.run(step)


@app.command()
def receive(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]…", help="Names of queues; default: all.")
    ] = None,
    *,
    count: Annotated[
        int, typer.Option(min=0, help="Messages to receive before exit; 0: no limit.")
    ] = 0,
    wait: Annotated[
        float, typer.Option(min=0, help="Seconds without a message before exit; 0: no limit.")
    ] = 0,
    json: JsonOption = False,
    state: StateOption = None,
) -> None:
    """Print messages as they arrive, and acknowledge them.

    A printed message is recorded before it is acknowledged, so that it is not printed again if the
    command is killed later. If another client subscribes with the same keys, a message says so.
    """
    file = work.kept_file(state)
    work.run(lambda: work.receive(file, names or [], count, wait, json=json))


@app.command("list")
def list_(*, json: JsonOption = False, state: StateOption = None) -> None:
    """List your queues, and those that you send to."""
    kept = work.guarded(work.kept_file(state).load)
    for name, one in kept.queues.items():
        server = one.queue.server.without_password
        if json:
            show_json(
                name=name, role="recipient", server=server, mode=one.queue.mode,
                address=str(one.queue.address), link=str(one.queue.link_address or ""),
            )  # fmt: skip
        else:
            say(f"{name:12} receive  {MODES[one.queue.mode]:16} {server}")
    for name, one in kept.senders.items():
        server = one.address.server.without_password
        if json:
            show_json(name=name, role="sender", server=server, secured=one.secured)
        else:
            say(f"{name:12} send     {'secured' if one.secured else 'open':16} {server}")
    if not json and not kept.queues and not kept.senders:
        say("no queues yet: `waystation queue new --server smp://…` makes one")


@app.command()
def address(
    name: NameArgument, *, qr: QrOption = None, json: JsonOption = False, state: StateOption = None
) -> None:
    """Print the address of a queue for senders."""
    kept = work.guarded(work.kept_file(state).load)
    work.guarded(lambda: kept.queue(name))
    show_queue(name, kept, qr=qr, json=json)


@app.command()
def info(name: NameArgument, *, json: JsonOption = False, state: StateOption = None) -> None:
    """Print the server's state of a queue: number of messages, whether it is secured."""
    kept = work.guarded(lambda: work.kept_file(state).load().queue(name))

    async def step() -> None:
        async with work.client_of(kept.queue.server) as client:
            fields = await client.info(kept.queue)
        if json:
            show_json(**fields)
            return
        say(f"messages   {fields.get('qiSize')}")
        say(f"secured    {'yes' if fields.get('qiSnd') else 'no, whoever has the address sends'}")
        say(f"notifier   {'yes' if fields.get('qiNtf') else 'no'}")
        if head := fields.get("qiMsg"):
            say(f"first      {head['msgType']} of {head['msgTs']}")

    work.run(step)


@app.command()
def secure(
    name: NameArgument,
    key: Annotated[
        str, typer.Argument(metavar="KEY", help="The sender's public key, base64url of its DER.")
    ],
    *,
    state: StateOption = None,
) -> None:
    """Allow only the holder of KEY to send."""
    kept = work.guarded(lambda: work.kept_file(state).load().queue(name))

    async def step() -> None:
        from waystation.client.queue.encoding import from_base64
        from waystation.client.queue.keys import PublicKey

        public = PublicKey.from_der(from_base64(key))
        async with work.client_of(kept.queue.server) as client:
            await client.secure(kept.queue, public)

    work.run(step)


@app.command()
def link(
    name: NameArgument,
    text: Annotated[str, typer.Argument(help="Text of the link.")] = "",
    *,
    delete: Annotated[bool, typer.Option("--delete", help="Delete the link.")] = False,
    qr: QrOption = None,
    json: JsonOption = False,
    state: StateOption = None,
) -> None:
    """Create a short link of a queue, or change its text."""
    file = work.kept_file(state)

    async def step() -> None:
        from waystation.client.queue.queue_file import SavedQueue

        queue = file.load().queue(name).queue
        async with work.client_of(queue.server) as client:
            queue = await (client.delete_link(queue) if delete else client.set_link(queue, text))
        with file.changing() as kept:
            kept.queues[name] = SavedQueue(queue, kept.queue(name).acked)
        show_queue(name, kept, qr=qr, json=json)

    work.run(step)


@app.command()
def suspend(name: NameArgument, *, state: StateOption = None) -> None:
    """Stop accepting messages; waiting ones can still be received."""
    kept = work.guarded(lambda: work.kept_file(state).load().queue(name))

    async def step() -> None:
        async with work.client_of(kept.queue.server) as client:
            await client.suspend(kept.queue)

    work.run(step)


@app.command()
def delete(
    name: NameArgument,
    *,
    forget: Annotated[
        bool,
        typer.Option("--forget", help="Remove its keys even if the server does not delete it."),
    ] = False,
    state: StateOption = None,
) -> None:
    """Delete a queue with its messages, or forget one that you send to."""
    file = work.kept_file(state)

    async def step() -> None:
        from waystation.base.errors import WaystationError

        kept = file.load()
        if name not in kept.senders:
            queue = kept.queue(name).queue
            try:
                async with work.client_of(queue.server) as client:
                    await client.delete(queue)
            except WaystationError as exc:
                if not forget:
                    raise
                complain(f"forgotten, but not deleted: {exc}")
        with file.changing() as kept:
            kept.senders.pop(name, None)
            kept.queues.pop(name, None)

    work.run(step)


@app.command()
def probe(
    server: Annotated[str, typer.Argument(metavar="SERVER", help="smp://FINGERPRINT@HOST[:PORT]")],
    *,
    json: JsonOption = False,
) -> None:
    """Check that a server answers and has the identity of its address; print its versions."""

    async def step() -> None:
        import time

        from waystation.client.queue.address import ServerAddress

        async with work.client_of(ServerAddress.parse(server)) as client:
            session = await client.connected()
            began = time.perf_counter()
            await client.ping()
            ping_ms = round((time.perf_counter() - began) * 1000, 2)
        offered = f"{session.version_min}–{session.version_max}"
        if json:
            show_json(
                version=session.version, version_min=session.version_min,
                version_max=session.version_max, ping_ms=ping_ms,
            )  # fmt: skip
        else:
            say("identity   as in the address")
            say(f"versions   {offered}, {session.version} is spoken")
            say(f"ping       {ping_ms} ms")

    work.run(step)
