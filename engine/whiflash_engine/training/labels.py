"""What a drafter is taught at a position: the target's distribution there.

It says more than the one token that was taken, and is memorised less.
"""

from collections import Counter
from collections.abc import Iterable

import torch
from torch import Tensor

from whiflash_engine.training.features import Sequence


def frequent_tokens(sequences: Iterable[Sequence], size: int) -> Tensor:
    """Return the ``size`` ids seen most often in answers, rising; low ids fill up the rest."""
    counts: Counter[int] = Counter()
    for sequence in sequences:
        counts.update(sequence.ids[sequence.prompt :].tolist())
    chosen = [token for token, _ in counts.most_common(size)]
    known = set(chosen)
    filler = (token for token in range(10**9) if token not in known)
    chosen.extend(next(filler) for _ in range(size - len(chosen)))
    return torch.tensor(sorted(chosen))


def positions_in(vocabulary: Tensor, tokens: Tensor) -> Tensor:
    """Return where each token stands in the sorted ``vocabulary``; -1 where it is not in it."""
    at = torch.searchsorted(vocabulary, tokens).clamp(max=len(vocabulary) - 1)
    return torch.where(vocabulary[at] == tokens, at, -1)


@torch.no_grad()
def soft_labels(sequence: Sequence, head: Tensor, vocabulary: Tensor) -> Tensor:
    """Return the label of every answer token after the first: [answer - 1, len(vocabulary)].

    Row ``i`` is about the token at position ``prompt + 1 + i``. ``head`` holds the target's output rows of
    ``vocabulary``. A grammar's choice is not in the target's distribution, so constrained text is taught by
    the token alone. A token outside the vocabulary leaves an all-zero row where only it would be taught.
    """
    if sequence.constrained:
        tokens = positions_in(vocabulary, sequence.ids[sequence.prompt + 1 :])
        known = tokens >= 0
        hard = torch.zeros(len(tokens), len(vocabulary))
        hard[known, tokens[known]] = 1.0
        return hard
    soft: Tensor = (sequence.final[sequence.prompt : -1].float() @ head.T).softmax(dim=-1)
    return soft
