"""Router labels: what every drafter would have got right at every possible round of recorded answers.

They come from replay of greedily decoded answers (:mod:`whiflash_engine.training.router_labels`), where
acceptance is exact: a draft token is accepted if it is the recorded one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Labels:
    """One answer; row ``s`` of every tensor is about the round after answer token ``s``."""

    kind: str
    entropy: Tensor
    """[rounds] nats, of the target's distribution that the newest token came from."""
    hidden: Tensor
    """[rounds, hidden] the target's final state that the newest token came from."""
    accepted: dict[str, Tensor]
    """Per drafter [rounds]: draft tokens that would be accepted of a draft of full length."""
    offered: dict[str, Tensor]
    """Per drafter [rounds]: draft tokens it had to offer."""

    def __len__(self) -> int:
        return len(self.entropy)


@dataclass(frozen=True)
class Round:
    """One round of a replayed decode; ``drafter=None`` is a plain step."""

    drafter: str | None
    drafted: int
    accepted: int


Pick = Callable[[Labels, int], tuple[str, int] | None]
"""(answer, round) → drafter and draft length, or ``None`` for no draft."""


def decode(answers: Sequence[Labels], pick: Pick) -> list[Round]:
    """Decode all answers as a router that picks by ``pick`` would: each round starts where the last one ended."""
    rounds = []
    for answer in answers:
        at = 0
        while at < len(answer):
            choice = pick(answer, at)
            if choice is None:
                made = Round(None, 0, 0)
            else:
                drafter, tokens = choice
                made = Round(drafter, tokens, min(tokens, int(answer.accepted[drafter][at])))
            rounds.append(made)
            at += made.accepted + 1
    return rounds


def acceptance_length(rounds: Sequence[Round]) -> float:
    """Return tokens per round, the bonus token included."""
    return 1 + sum(made.accepted for made in rounds) / max(len(rounds), 1)


def shares(rounds: Sequence[Round]) -> dict[str, float]:
    """Return each drafter's share of the rounds; ``none`` are plain steps."""
    names = [made.drafter or "none" for made in rounds]
    return {name: round(names.count(name) / len(names), 4) for name in sorted(set(names))}
