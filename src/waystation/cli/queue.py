"""`waystation queue`: a client of SMP servers in the terminal."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from . import queue_runner as work
from .queue_output import MODES, show_json, show_queue
from .terminal import complain, give_up, harmless, say

app = typer.Typer(
    help="""One-way queues on an SMP server: make one, send to one, receive.

    A queue carries messages from whoever has its address to its owner. The server sees neither
    names nor accounts. SMP itself does not encrypt from sender to recipient: these commands seal
    every text for the key in the address, so that the server cannot read it, but there is no
    ratchet behind it. Whoever gets hold of the state file later can open what was sent before;
    chat applications of this network put more on top, and theirs is not spoken here.
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
    bool | None, typer.Option("--qr/--no-qr", help="A QR code; by default on a terminal.")
]
NameArgument = Annotated[str, typer.Argument(metavar="NAME", show_default=False)]
ProxyOption = Annotated[
    str,
    typer.Option(
        help="Address of another server to send through: the queue's server does not learn where"
        " you are, and the other one not to whom you write."
    ),
]


@app.command()
def new(
    name: Annotated[str, typer.Argument(help="How you call it; by default inbox1, inbox2 …")] = "",
    *,
    server: Annotated[
        str,
        typer.Option(
            help="smp://FINGERPRINT[:PASSWORD]@HOST[:PORT]; by default the server of your last"
            " queue, or the one that runs on --data-dir."
        ),
    ] = "",
    contact: Annotated[
        bool,
        typer.Option(
            "--contact", help="An address for many senders. By default the first one keeps it."
        ),
    ] = False,
    link: Annotated[
        str | None,
        typer.Option(help="A short link instead of the long address; it shows this text first."),
    ] = None,
    data_dir: Annotated[
        Path, typer.Option("--data-dir", help="Of a server on this machine, to find its address.")
    ] = Path("waystation-data"),
    qr: QrOption = None,
    json: JsonOption = False,
    state: StateOption = None,
) -> None:
    """Make a queue and print what a sender needs."""
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
        bool, typer.Option("--notify", help="Ask for a push notification to the recipient.")
    ] = False,
    plain: Annotated[
        bool, typer.Option("--plain", help="Do not seal: the server can read the text.")
    ] = False,
    again: Annotated[
        bool,
        typer.Option("--again", help="Repeat it if the answer is lost; it may arrive twice."),
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
    """See what a short link leads to, and keep it. An invitation is yours from then on."""
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
        list[str] | None, typer.Argument(metavar="[NAME]…", help="By default all of them.")
    ] = None,
    *,
    count: Annotated[int, typer.Option(min=0, help="End after so many; 0 goes on.")] = 0,
    wait: Annotated[
        float, typer.Option(min=0, help="End after so many seconds of silence; 0 goes on.")
    ] = 0,
    json: JsonOption = False,
    state: StateOption = None,
) -> None:
    """Print messages as they come, and acknowledge them.

    What was printed is noted before it is acknowledged, so that it is not printed again when this
    command was killed, unless between the two. If somebody else subscribes with the same keys,
    this command is told so.
    """
    file = work.kept_file(state)
    work.run(lambda: work.receive(file, names or [], count, wait, json=json))


@app.command("list")
def list_(*, json: JsonOption = False, state: StateOption = None) -> None:
    """Your queues, and those you send to."""
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
    """Print again what a sender needs."""
    kept = work.guarded(work.kept_file(state).load)
    work.guarded(lambda: kept.queue(name))
    show_queue(name, kept, qr=qr, json=json)


@app.command()
def info(name: NameArgument, *, json: JsonOption = False, state: StateOption = None) -> None:
    """What the server has of a queue: how many messages wait, whether it is secured."""
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
    """Let only the holder of KEY send from now on."""
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
    text: Annotated[str, typer.Argument(help="What it shows to who opens it.")] = "",
    *,
    delete: Annotated[bool, typer.Option("--delete", help="Take the link away.")] = False,
    qr: QrOption = None,
    json: JsonOption = False,
    state: StateOption = None,
) -> None:
    """Give a queue a short link, or the link it has another text."""
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
    """Take no more messages; those that wait can still be received."""
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
        bool, typer.Option("--forget", help="Forget its keys even if the server does not delete.")
    ] = False,
    state: StateOption = None,
) -> None:
    """Delete a queue with all that is in it, or forget one that you send to."""
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
    """Is a server there, is it the one of the address, and what does it speak?"""

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
