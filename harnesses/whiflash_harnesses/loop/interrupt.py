"""Ctrl-C once: finish the step that runs. Twice: stop."""

import signal
from collections.abc import Callable
from types import FrameType
from typing import Any


class Interrupt:
    """While entered, turns the first SIGINT into a request; the second raises KeyboardInterrupt.

    Works in the main thread only, as Python's signal handlers do.
    """

    def __init__(self, notify: Callable[[str], None] = lambda text: None) -> None:
        self.requested = False
        self._notify = notify
        self._before: Any = None

    def __enter__(self) -> "Interrupt":
        self._before = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *exc: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
        self._notify("interrupted: finishing the current step (Ctrl-C again stops at once)")
