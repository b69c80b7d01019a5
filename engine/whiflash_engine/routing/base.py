"""What a router may look at, what it may choose, and the class that routers derive from."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import torch

from whiflash_engine.trace import RoundRecord


@dataclass(frozen=True, slots=True)
class Signals:
    """What is known of one request before its next round, at its last accepted position."""

    entropy: float | None = None
    """Shannon entropy (nats, temperature 1) of the target's next-token distribution; ``None`` if not asked."""
    hidden: torch.Tensor | None = None
    """[hidden] the target's final hidden state (after its last norm); ``None`` if not asked."""
    deferred: Mapping[str, int] = field(default_factory=dict)
    """Context rows that each drafter would have to catch up first."""
    requests: int = 1
    """How many requests of the batch go into this round."""
    request: str = ""
    """The request's id: a router may remember what it saw of it (see :meth:`Router.observe`)."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A drafter for the coming round and how many tokens it is to draft, with what the router thought."""

    drafter: str
    tokens: int
    notes: Mapping[str, float] | None = None
    """What goes into the round record's ``signal`` beside the entropy."""


class Router(ABC):
    """Picks a drafter for one request and round."""

    name: str
    drafters: tuple[str, ...]
    """Drafters it may choose; others are not asked what they could draft."""
    needs: ClassVar[frozenset[str]] = frozenset()
    """The signals it looks at: ``entropy``, ``hidden``."""
    surveys: ClassVar[bool] = False
    """True: all of ``drafters`` are asked, their drafts are recorded, and the target verifies none."""

    @abstractmethod
    def choose(self, signals: Signals, offers: Mapping[str, int]) -> Choice | None:
        """Return a drafter and at most as many tokens as it ``offers``; ``None`` drafts nothing.

        A drafter that cannot draft now (past its positions, nothing found) is not in ``offers``.
        """

    def observe(self, record: RoundRecord) -> None:  # noqa: B027 - most routers learn nothing
        """Take in a round of a request that this router routes, once the target has verified it."""

    def forget(self, request: str) -> None:  # noqa: B027
        """Drop what is remembered of a request that ended; ``request`` is that of :class:`Signals`."""
