"""The HTML information page of a queue server."""

import html

import msgspec

from waystation.net.http1.message import Response

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Queue server</title>
<meta name="viewport" content="width=device-width, initial-scale=1"></head>
<body><h1>Queue server</h1>
<p>This server carries messages of the SimpleX Messaging Protocol, version {lowest} to {highest}.
It keeps no accounts, reads no messages, and logs neither connections nor commands.</p>
<p>Its address: <code>{address}</code></p>
<p>New queues: {new_queues}. Messages are kept for {days}.</p>
{information}</body></html>
"""


class InformationPage(msgspec.Struct, frozen=True):
    """The content of the page."""

    address: str
    lowest: int
    highest: int
    new_queues: str
    days: str
    information: str

    def render(self) -> bytes:
        said = "".join(
            f"<p>{html.escape(line)}</p>\n" for line in self.information.splitlines() if line
        )
        return _PAGE.format(
            lowest=self.lowest,
            highest=self.highest,
            address=html.escape(self.address),
            new_queues=html.escape(self.new_queues),
            days=html.escape(self.days),
            information=said,
        ).encode()

    async def answer(self) -> Response:
        return Response.of(200, self.render(), content_type=b"text/html; charset=utf-8")
