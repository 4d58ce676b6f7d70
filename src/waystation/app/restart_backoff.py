"""When a worker that died is started again.

Rule 1: one that lived a while is started again at once.
Rule 2: one that dies young again and again waits twice as long each time, up to a limit, so
        that a broken set-up neither burns the machine nor fills the log.
Rule 3: we never give up: what broke it (a full disk, a store that is away) may be mended.
"""

LIVED_S = 10.0  # a life of this length counts as sound
FIRST_DELAY_S = 0.5
DELAY_MAX_S = 30.0


class RestartBackoff:
    """The deaths of one worker."""

    __slots__ = ("_born", "_young_deaths")

    def __init__(self) -> None:
        self._born = 0.0
        self._young_deaths = 0

    @property
    def young_deaths(self) -> int:
        return self._young_deaths

    def born(self, mono: float) -> None:
        self._born = mono

    def died(self, mono: float) -> float:
        """How long to wait before it is started again."""
        if mono - self._born >= LIVED_S:
            self._young_deaths = 0
            return 0.0
        self._young_deaths += 1
        if self._young_deaths == 1:
            return 0.0
        return min(FIRST_DELAY_S * 2 ** (self._young_deaths - 2), DELAY_MAX_S)
