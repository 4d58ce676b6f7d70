"""`python -m benchmarks`: measure our server, or another one by its URLs, in interleaved rounds."""

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import msgspec

from . import nchan, side_by_side
from .checkout import checkout, current
from .cluster_target import CLUSTER_QUICK, CLUSTER_SMOKE, ClusterScale, own_cluster
from .environment import environment
from .floor import floor_server
from .measurement import Measurement, summarise
from .megaphone import megaphone
from .mixed_load import RealisticScale
from .presence_target import KINDS, party_server
from .queue_floor import queue_floor
from .queue_target import QUEUE_QUICK, QUEUE_SMOKE, QueueScale, QueueTarget, own_queue_server
from .report import Report, to_json, to_markdown, to_terminal
from .scenarios import (
    bridged,
    broadcast,
    cluster,
    crowd,
    direct,
    floor,
    hello,
    idle,
    latency,
    presence,
    presence_engine,
    queue_blocks,
    queue_idle,
    queue_messages,
    queue_refusals,
    realistic,
    stored,
    stores,
)
from .scenarios.crowd import CROWD_QUICK, CROWD_SMOKE, CrowdScale
from .stores import OWN, places
from .target import QUICK, SMOKE, Scale, Target, own_server
from .vendor import vendor
from .wire import LoadError

Step = Callable[[], Sequence[Measurement]]

SCENARIOS = ("floor", "realistic", "direct", "stored", "latency", "hello", "idle", "broadcast")
ON_REQUEST = (
    "bridged",
    "pipeline",
    "stores",
    "queue",
    "cluster",
    "presence",
    "crowd",
)  # they start servers of their own
ONCE = {
    "idle",
    "queue idle",
    "party idle",
    "crowd",
}  # memory does not vary from round to round as CPU does


def main(argv: Sequence[str] | None = None) -> int:
    options = _parse(argv)
    if options.against:
        return _side_by_side(options)
    scale = {"full": Scale(), "quick": QUICK, "smoke": SMOKE}[options.scale]
    rounds: list[list[Measurement]] = []
    with contextlib.ExitStack() as stack:
        steps = dict(_steps(options, scale, stack))
        for number in range(options.rounds):
            measurements: list[Measurement] = []
            for name, step in steps.items():
                if name in ONCE and number > 0:
                    continue
                print(f"round {number + 1} of {options.rounds}: {name}", file=sys.stderr)
                measurements.extend(step())
            rounds.append(measurements)
            if options.out:  # after each: a run that is cut short has measured something, too
                options.out.write_bytes(to_json(_report(rounds)))
    report = _report(rounds)
    to_terminal(report)
    if options.markdown:
        if str(options.markdown) == "-":
            print(to_markdown(report))
        else:
            options.markdown.write_text(to_markdown(report) + "\n")
    lost = sum(summary.lost or 0 for summary in report.summaries)
    if lost:
        print(f"{lost} were lost: see the table", file=sys.stderr)
    return 1 if lost else 0


def _side_by_side(options: argparse.Namespace) -> int:
    rows = [row for row in side_by_side.TURNS if row in options.only]
    compared: list[side_by_side.Compared] = []
    text = ""
    with checkout(options.against) as old:
        new = current()
        for compared in side_by_side.run(old, new, rows, options.scale, options.rounds):
            text = side_by_side.to_text(compared, old.name, new.name)
            print(text, flush=True)
            if options.out:
                options.out.write_bytes(msgspec.json.format(msgspec.json.encode(compared)) + b"\n")
    if options.markdown and str(options.markdown) != "-":
        options.markdown.write_text(text + "\n")
    return 1 if any(one.lost for one in compared) else 0


def _report(rounds: list[list[Measurement]]) -> Report:
    return Report(environment(), summarise(rounds, "floor"), rounds)


def _steps(
    options: argparse.Namespace, scale: Scale, stack: contextlib.ExitStack
) -> Iterator[tuple[str, Step]]:
    wanted = options.only
    if "floor" in wanted:
        bare = stack.enter_context(floor_server("bare"))
        ours = stack.enter_context(floor_server("ours"))
        yield "floor", lambda: [floor.run(bare, scale)]
        yield "http", lambda: [floor.run(ours, scale, "our HTTP server, empty handler")]
    if "idle" in wanted:
        yield "idle", lambda: [_idle(options, scale)]
    if set(wanted) - {"floor", "idle", "broadcast", *ON_REQUEST}:
        target = _target(options, stack)
        mixed = side_by_side.SCALES[options.scale].realistic
        steps = _push_steps(target, scale, mixed)
        yield from (step for step in steps if step[0].split(",")[0] in wanted)
    if "broadcast" in wanted:
        yield from _broadcast_steps(options, scale, stack)
    if "bridged" in wanted:
        yield from _bridge_steps(options, scale, stack)
    if "presence" in wanted:
        yield from _party_steps(scale, stack)
    if "pipeline" in wanted:
        yield from _pipeline_steps(options)
    if "stores" in wanted:
        for place in places(options.stores, stack):
            yield f"store {place.name}", partial(stores.run, place, scale)
    if "queue" in wanted:
        yield from _queue_steps(options, stack)
    if "cluster" in wanted:
        yield from _cluster_steps(options, stack)
    if "crowd" in wanted:
        yield "crowd", lambda: _crowd(options)


def _crowd(options: argparse.Namespace) -> Sequence[Measurement]:
    scales = {"full": CrowdScale(), "quick": CROWD_QUICK, "smoke": CROWD_SMOKE}
    with own_server(crowd.WORKERS, store=options.store) as target:
        return crowd.run(target, scales[options.scale])


def _pipeline_steps(options: argparse.Namespace) -> Iterator[tuple[str, Step]]:
    from .scenarios import pipeline

    sizes: list[int] = options.events or [pipeline.EVENTS_DEFAULT]
    bench = pipeline.Bench(min(pipeline.FIXED_EVENTS, *sizes))
    for events in sizes:
        yield f"pipeline, {events:,} events", partial(bench.sized, events)
    if len(sizes) > 1:
        yield "pipeline, growth", bench.growth
    yield "pipeline, ratios", bench.fixed


def _cluster_steps(
    options: argparse.Namespace, stack: contextlib.ExitStack
) -> Iterator[tuple[str, Step]]:
    scales = {"full": ClusterScale(), "quick": CLUSTER_QUICK, "smoke": CLUSTER_SMOKE}
    scale = scales[options.scale]
    alone = _queue_target(options, stack)
    yield "cluster alone", lambda: [cluster.messages(alone, scale, cluster.ALONE)]
    for servers, followed, what in (
        (1, False, "one server behind an edge"),
        (4, False, "four servers behind an edge"),
        (4, True, "four servers with followers"),
    ):
        if options.scale == "smoke" and servers > 1:
            continue
        name = f"cluster: messages, {what}"
        # One after the other: an idle cluster of four still renews leases and looks at the map.
        yield name, partial(_cluster_messages, scale, servers, followed, name)
    crowded = stack.enter_context(own_cluster(2, crowds=scale.crowds))
    for slot, queues in enumerate(scale.crowds):
        yield f"cluster moves, {queues}", lambda slot=slot: [cluster.moves(crowded, scale, slot)]


def _cluster_messages(
    scale: ClusterScale, servers: int, followed: bool, name: str
) -> Sequence[Measurement]:
    with own_cluster(servers, followed=followed) as target:
        return [cluster.messages(target, scale, name)]


def _queue_steps(
    options: argparse.Namespace, stack: contextlib.ExitStack
) -> Iterator[tuple[str, Step]]:
    scale = {"full": QueueScale(), "quick": QUEUE_QUICK, "smoke": QUEUE_SMOKE}[options.scale]
    yield "queue idle", lambda: _queue_idle(options, scale)
    for kind in ("uvloop", "carrier"):
        bare = stack.enter_context(queue_floor(kind))
        yield f"queue {kind}", lambda bare=bare, kind=kind: [queue_blocks.run(bare, scale, kind)]
    ours = _queue_target(options, stack)
    for kind in queue_blocks.KINDS:
        yield f"queue {kind}", lambda kind=kind: [queue_blocks.run(ours, scale, kind)]
    yield "queue messages", lambda: [queue_messages.run(ours, scale)]
    yield "queue refusals", lambda: queue_refusals.run(ours, scale)


def _queue_target(options: argparse.Namespace, stack: contextlib.ExitStack) -> QueueTarget:
    if options.queue:
        return QueueTarget(options.queue, tuple(options.server_pid))
    return stack.enter_context(own_queue_server())


def _queue_idle(options: argparse.Namespace, scale: QueueScale) -> Sequence[Measurement]:
    with contextlib.ExitStack() as stack:
        return queue_idle.run(_queue_target(options, stack), scale)


def _push_steps(target: Target, scale: Scale, mixed: RealisticScale) -> Iterator[tuple[str, Step]]:
    yield "realistic", lambda: realistic.run(target, mixed)
    yield "direct", lambda: [direct.run(target, scale)]
    yield "direct, new tokens", lambda: [direct.run(target, scale, fresh=True)]
    yield "stored", lambda: stored.run(target, scale)
    yield "latency", lambda: [latency.run(target, scale)]
    yield "latency, new tokens", lambda: [latency.run(target, scale, fresh=True)]
    yield "hello", lambda: [hello.run(target, scale)]


def _idle(options: argparse.Namespace, scale: Scale) -> Measurement:
    with contextlib.ExitStack() as stack:
        return idle.run(_target(options, stack), scale)


def _broadcast_steps(
    options: argparse.Namespace, scale: Scale, stack: contextlib.ExitStack
) -> Iterator[tuple[str, Step]]:
    if options.ws:
        if options.megaphone:
            target = _target(options, stack)
            yield "broadcast", lambda: [broadcast.run(target, scale, options.megaphone)]
    else:
        url = stack.enter_context(megaphone())
        settings = {**broadcast.SETTINGS, "CONNECT__MEGAPHONE_API_URL": f"{url}/v1/broadcasts"}
        own = stack.enter_context(own_server(options.workers, settings=settings))
        yield "broadcast", lambda: [broadcast.run(own, scale, url)]
    module = nchan.nchan_module()
    if module is not None:
        other = stack.enter_context(nchan.nchan_server(module))
        yield "nchan", lambda: [nchan.run(other, scale)]


def _bridge_steps(
    options: argparse.Namespace, scale: Scale, stack: contextlib.ExitStack
) -> Iterator[tuple[str, Step]]:
    double = stack.enter_context(vendor())
    settings = {
        "FCM__CREDENTIALS": double.credentials,
        "FCM__BASE_URL": double.url,
        "ENDPOINT__RATE_REGISTRATIONS": "0",
    }

    # Longer than the run: senders to a bridge that hangs wait, and are not refused at once.
    settings["FCM__TIMEOUT_S"] = "60"

    def fresh(step: Callable[[Target], Measurement]) -> Sequence[Measurement]:
        # A server of its own: one that met a hanging bridge pauses before it asks it again.
        with own_server(options.workers, settings=settings) as target:
            return [step(target)]

    yield "bridged", lambda: fresh(lambda target: bridged.run(target, double, scale))
    yield "direct", lambda: fresh(lambda target: direct.run(target, scale))
    yield (
        "direct, a bridge hangs",
        lambda: fresh(lambda target: bridged.beside_a_hang(target, double, scale)),
    )


def _party_steps(scale: Scale, stack: contextlib.ExitStack) -> Iterator[tuple[str, Step]]:
    def at_rest() -> list[Measurement]:
        found: list[Measurement] = []
        for kind in KINDS:
            with party_server(kind) as server:
                found.append(presence.idle(server, scale))
        return found

    yield "party idle", at_rest
    yield "party engine", lambda: [presence_engine.run(scale)]
    for setting in presence.SETTINGS:
        for kind in KINDS:
            server = stack.enter_context(party_server(kind, tls=setting == "TLS"))
            yield f"{setting}, {kind}", lambda s=server, w=setting: list(presence.run(s, w, scale))
    for kind in KINDS:
        server = stack.enter_context(party_server(kind))
        yield f"party latency, {kind}", lambda s=server: [presence.latency(s, scale)]


def _target(options: argparse.Namespace, stack: contextlib.ExitStack) -> Target:
    if options.ws:
        return Target(options.ws, options.endpoint, tuple(options.server_pid))
    return stack.enter_context(own_server(options.workers, store=options.store))


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--ws", default="", help="ws://… of a running server; none: start ours")
    parser.add_argument("--endpoint", default="", help="http://… of the same server")
    parser.add_argument(
        "--server-pid",
        type=int,
        action="append",
        default=[],
        help="root of its process tree, for CPU",
    )
    parser.add_argument(
        "--megaphone", default="", help="http://… of the `benchmarks.megaphone` that it polls"
    )
    parser.add_argument("--queue", default="", help="smp://… of a running queue server")
    parser.add_argument("--workers", default="auto", help="of our server")
    parser.add_argument("--store", default="", help="of our server, e.g. memory:")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--against",
        default="",
        metavar="CHECKOUT",
        help="side by side with another checkout: a commit, or a folder with its environment;"
        f" --only chooses among {', '.join(side_by_side.TURNS)}",
    )
    scales = parser.add_mutually_exclusive_group()
    scales.add_argument("--quick", dest="scale", action="store_const", const="quick")
    scales.add_argument("--smoke", dest="scale", action="store_const", const="smoke")
    parser.set_defaults(scale="full")
    parser.add_argument(
        "--only",
        nargs="+",
        choices=(*SCENARIOS, *ON_REQUEST, side_by_side.COUNTED),
        default=list(SCENARIOS),
    )
    parser.add_argument(
        "--stores",
        nargs="+",
        default=[],
        metavar="STORE",
        help=f"for `--only stores`: URLs, or of {', '.join(OWN)}; none: all that are here",
    )
    parser.add_argument(
        "--events",
        nargs="+",
        type=int,
        default=[],
        metavar="N",
        help="for `--only pipeline`: how many events, in one run each (1,000,000)",
    )
    parser.add_argument("--out", type=Path, help="JSON with every measurement")
    parser.add_argument("--markdown", type=Path, help="table for the documents; - is stdout")
    options = parser.parse_args(argv)
    if bool(options.ws) != bool(options.endpoint):
        parser.error("--ws and --endpoint belong together")
    if options.against and options.only == list(SCENARIOS):
        options.only = [row for row in side_by_side.TURNS if row != side_by_side.COUNTED]
    if options.against and (others := set(options.only) - set(side_by_side.TURNS)):
        parser.error(f"--against has no {', '.join(sorted(others))}")
    if not options.against and side_by_side.COUNTED in options.only:
        parser.error(f"{side_by_side.COUNTED} needs --against: a count alone says little")
    if options.rounds < 1:
        parser.error("--rounds is at least 1")
    return options


if __name__ == "__main__":
    try:
        sys.exit(main())
    except LoadError as error:
        sys.exit(f"the measurement is void: {error}")
