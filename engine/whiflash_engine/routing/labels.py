"""Router labels: what every drafter would have got right at every possible round of recorded answers.

They come from replay of greedily decoded answers (:mod:`whiflash_engine.training.router_labels`), or from surveys
by the engine; acceptance is exact there: a draft token is accepted if it is the recorded one.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Labels:
    """One answer; row ``s`` of every tensor is about the round after answer token ``s``."""

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


def accepted_prefix(draft: Sequence[int], following: Sequence[int]) -> int:
    """Return how many tokens of ``draft`` are those that came, up to the first that is not."""
    right = [a == b for a, b in zip(draft, following, strict=False)] + [False]
    return right.index(False)
