"""The tree of errors, independent of any wire.

Four branches tell what the peer can do: `RejectedError` (correct the request), `GoneError` (stop
asking), `BusyError` (retry soon) and `UnavailableError` (a dependency is down). Services add
leaves; a table per wire gives each leaf its form.
"""

from typing import ClassVar


class WaystationError(Exception):
    """Root of everything that we raise on purpose; as an answer it is a mistake of ours.

    Send again later, and tell the operator: the log of the server has a line about it.
    """

    label: ClassVar[str] = "error"  # the metric tag, the log field, the docs anchor


class RejectedError(WaystationError):
    """The input is wrong; nothing was changed.

    Mend the request; the same one fails again.
    """

    label = "rejected"


class GoneError(WaystationError):
    """What the request names does not exist any more.

    Stop asking for it.
    """

    label = "gone"


class BusyError(WaystationError):
    """A named limit is reached; the same request may succeed later.

    Send again after `Retry-After` seconds, later each time.
    """

    label = "busy"

    def __init__(self, message: str = "", *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class UnavailableError(WaystationError):
    """Something that we depend on does not answer.

    Send again after `Retry-After` seconds, later each time.
    """

    label = "unavailable"


class StoreUnavailableError(UnavailableError):
    """The store did not answer, or too much waits for it; nothing was accepted.

    Send again after `Retry-After` seconds, later each time.
    """

    label = "store_unavailable"


class StoreFullError(StoreUnavailableError):
    """No room for another row; deletes and sweeps still work.

    Send again after `Retry-After` seconds, later each time. Direct deliveries still work.
    """

    label = "store_full"
