"""Router labels by replay: every drafter drafts at every possible round of recorded greedy answers."""

import torch
from torch import Tensor

from whiflash_engine.routing.entropy import row_entropy
from whiflash_engine.routing.labels import Labels, accepted_prefix
from whiflash_engine.training import replay
from whiflash_engine.training.dflash import BLOCK, DFlash
from whiflash_engine.training.eagle3 import Eagle3
from whiflash_engine.training.features import Sequence

NGRAM_TOKENS = 10


def label(
    sequence: Sequence, embedding: Tensor, head: Eagle3, block: DFlash, *, steps: int, offered: int = BLOCK - 1
) -> Labels:
    """Return the labels of one answer. ``embedding`` [vocab, hidden]: the target's tied output rows.

    ``steps``: draft tokens of EAGLE-3; ``offered``: tokens of a DFlash block that are put to the target.
    """
    rounds = sequence.length - 1 - sequence.prompt
    states = sequence.final[sequence.prompt - 1 : sequence.length - 2]
    entropies = [row_entropy(part.float() @ embedding.T) for part in torch.split(states, 64)]
    looked_up, found = ngram_lengths(sequence)
    return Labels(
        entropy=torch.cat(entropies),
        hidden=states.clone(),
        accepted={
            "eagle3": replay.eagle3_lengths(head, sequence, steps),
            # On the CPU, DFlash drafts from the EAGLE-3 head's vocabulary.
            "dflash": replay.dflash_lengths(block, sequence, head.vocabulary).clamp(max=offered),
            "ngram": looked_up,
        },
        offered={
            "eagle3": torch.full((rounds,), steps),
            "dflash": torch.full((rounds,), offered),
            "ngram": found,
        },
    )


def ngram_lengths(sequence: Sequence) -> tuple[Tensor, Tensor]:
    """Return accepted and offered tokens of the lookup drafter for every possible round: each [answer - 1]."""
    from whiflash_engine.drafters.ngram import lookup  # imports vLLM, which training does not need

    ids = sequence.ids.int().numpy()
    accepted, offered = [], []
    for end in range(sequence.prompt + 1, sequence.length):
        draft = lookup(ids[:end], NGRAM_TOKENS)
        accepted.append(accepted_prefix(draft, ids[end : end + len(draft)].tolist()))
        offered.append(len(draft))
    return torch.tensor(accepted), torch.tensor(offered)
