"""What the supervisor and a worker say to each other."""

import socket
import subprocess
import sys

import msgspec
import pytest

from waystation.app.supervisor_protocol import (
    Failed,
    Order,
    Ready,
    SupervisorLine,
    decode_report,
    encode_line,
)

ORDER = Order(
    kind="push",
    service="serve",
    index=1,
    count=2,
    roles=("connect",),
    supervisor_pid=7,
    settings=msgspec.Raw(b'{"host":"h"}'),
)


def test_an_order_arrives_as_it_was_given_even_in_pieces() -> None:
    ours, theirs = socket.socketpair()
    line = encode_line(ORDER)
    ours.sendall(line[:10])
    ours.sendall(line[10:])
    with ours, theirs:
        received = SupervisorLine(theirs).receive_order()

    assert (received.index, received.roles, received.supervisor_pid) == (1, ("connect",), 7)
    assert bytes(received.settings) == b'{"host":"h"}'


def test_a_supervisor_that_ends_before_its_order_is_noticed() -> None:
    ours, theirs = socket.socketpair()
    ours.close()
    with theirs, pytest.raises(EOFError):
        SupervisorLine(theirs).receive_order()


@pytest.mark.parametrize("report", [Ready(), Failed("no disk", 78)])
def test_reports_come_back_whole(report: Ready | Failed) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        SupervisorLine(theirs).report(report)

        assert decode_report(ours.recv(1000).strip()) == report


def test_the_end_of_the_line_is_told_from_silence() -> None:
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    line = SupervisorLine(theirs)
    silent = line.ended()
    ours.close()

    assert not silent
    assert line.ended()
    line.report(Ready())  # nobody hears it, and that is no error
    theirs.close()


def test_a_worker_whose_supervisor_is_already_gone_ends() -> None:
    """In a process of its own: it changes what the system does when a parent ends."""
    program = (
        "import os; from waystation.app.supervisor_protocol import end_with_parent;"
        " end_with_parent({}); print('goes on')"
    )

    def run(parent: str) -> str:
        command = [sys.executable, "-c", program.format(parent)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    assert run("os.getpid()") == ""  # nobody is its own parent
    assert run("os.getppid()") == "goes on\n"
