"""One record per request and round, and the figures that are made of them.

A round is: draft, verify, accept. Its record is complete once the target has verified the draft, one engine
step after the draft was made. Schema: see ``SCHEMA``; field meanings are those of the bench's JSON.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

SCHEMA = "whiflash-round/1"
NO_DRAFTER = "none"


@dataclass(slots=True)
class RoundRecord:
    """What happened in one round of one request. Times are seconds of the whole batch's phase."""

    request_id: str
    round: int
    position: int
    """Output tokens the request had before this round."""
    drafter: str
    """Who drafted; ``none``: nothing was drafted, a plain decoding step."""
    router: str
    drafted: int = 0
    accepted: int = 0
    """Draft tokens the target accepted; the round emits ``accepted + 1`` tokens."""
    signal: dict[str, float] = field(default_factory=dict)
    """What the router looked at, for instance ``{"entropy": nats}``."""
    switched: bool = False
    """True if the previous round of this request used another drafter."""
    catch_up_rows: int = 0
    draft_s: float = 0.0
    catch_up_s: float = 0.0
    verify_s: float = 0.0
    router_s: float = 0.0
    survey: dict[str, list[int]] = field(default_factory=dict)
    """Under the router ``survey``: what every drafter would have drafted here. Nothing of it was verified."""

    def to_dict(self) -> dict[str, Any]:
        """Return the record as plain JSON data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "RoundRecord":
        """Read what :meth:`to_dict` wrote."""
        return cls(**data)


def summarize(rounds: Sequence[RoundRecord]) -> dict[str, Any]:
    """Sum up rounds: acceptance per drafter and position, shares, switches, seconds.

    ``mean_acceptance_length`` counts the bonus token: (accepted + rounds) / rounds. With no rounds the
    counts are 0 and the means are ``None``.
    """
    by_drafter: dict[str, list[RoundRecord]] = defaultdict(list)
    for record in rounds:
        by_drafter[record.drafter].append(record)
    count = len(rounds)
    return {
        "rounds": count,
        "drafted": sum(r.drafted for r in rounds),
        "accepted": sum(r.accepted for r in rounds),
        "mean_acceptance_length": mean_acceptance_length(rounds),
        "acceptance_by_position": acceptance_by_position(rounds),
        "share_by_drafter": {name: len(rs) / count for name, rs in sorted(by_drafter.items())},
        "by_drafter": {name: _drafter_figures(rs) for name, rs in sorted(by_drafter.items())},
        "switches": sum(r.switched for r in rounds),
        "catch_up_rows": sum(r.catch_up_rows for r in rounds),
        "seconds": {
            name: sum(getattr(r, f"{name}_s") for r in rounds)
            for name in ("draft", "verify", "catch_up", "router")
        },
    }


def mean_acceptance_length(rounds: Sequence[RoundRecord]) -> float | None:
    """Return tokens emitted per round, the bonus token included; ``None`` without rounds."""
    if not rounds:
        return None
    return 1 + sum(r.accepted for r in rounds) / len(rounds)


def acceptance_by_position(rounds: Iterable[RoundRecord]) -> list[float]:
    """Return, for each draft position, the share of drafts that long whose token there was accepted."""
    drafted: Counter[int] = Counter()
    accepted: Counter[int] = Counter()
    for record in rounds:
        drafted.update(range(record.drafted))
        accepted.update(range(record.accepted))
    return [accepted[i] / drafted[i] for i in range(len(drafted))]


def _drafter_figures(rounds: Sequence[RoundRecord]) -> dict[str, Any]:
    drafted = sum(r.drafted for r in rounds)
    accepted = sum(r.accepted for r in rounds)
    return {
        "rounds": len(rounds),
        "drafted": drafted,
        "accepted": accepted,
        "acceptance_rate": accepted / drafted if drafted else None,
        "mean_acceptance_length": mean_acceptance_length(rounds),
    }
