"""Which rows of a step the routers look at."""

from types import SimpleNamespace

import numpy as np
import torch

from whiflash_engine.drafters.base import ContextRows, RoundBatch
from whiflash_engine.drafters.ngram import NgramDrafter, lookup
from whiflash_engine.runtime.runner import _accepted_rows
from whiflash_engine.training.features import TAPS, Sequence
from whiflash_engine.training.router_labels import ngram_lengths


def test_the_newest_token_came_from_the_row_of_the_last_accepted_draft() -> None:
    # Four requests with 3, 0, 2 and 0 draft tokens: rows 0-3, 4, 5-7 and 8.
    drafted = SimpleNamespace(num_draft_tokens=[3, 0, 2, 0])
    assert _accepted_rows([[7, 8], [9], [1, 2, 3], []], drafted) == [1, 4, 7, 8]
    assert _accepted_rows([[7], [], [9]], None) == [0, 1, 2], "a prompt that goes on has one row, and no token"


def batch(*texts: list[int]) -> RoundBatch:
    """A batch of requests of which only the tokens matter; unknown places hold what must not be read."""
    token_ids = np.full((len(texts), 32), 5, dtype=np.int32)
    for row, text in enumerate(texts):
        token_ids[row, : len(text)] = text
    none = torch.empty(0)
    return RoundBatch(
        ContextRows(none, none, none, none), none, none, none, 16, token_ids, np.array([len(t) for t in texts])
    )


def test_lookup_offers_and_drafts_what_followed() -> None:
    drafter = NgramDrafter(max_tokens=4, max_positions=100)
    requests = batch([1, 2, 3, 4, 8, 1, 2], [1, 2, 3], [6, 7, 9, 6, 7])
    assert [drafter.offers(requests, index) for index in range(3)] == [4, 0, 3]
    assert drafter.propose(requests, [2, 0], [1, 4]) == [[9], [3, 4, 8, 1]]
    assert lookup(np.array([5], dtype=np.int32), 4) == []


def test_lookup_labels_are_what_the_drafter_would_do() -> None:
    ids = torch.tensor([1, 2, 3, 4, 8, 1, 2, 3, 4, 9])
    none = torch.empty(len(ids), len(TAPS))
    answer = Sequence(ids, none, none, prompt=4, kind="code", greedy=True, constrained=False, split="train")
    accepted, offered = ngram_lengths(answer)
    # Rounds start after the answer tokens 8, 1, 2, 3, 4; from the third on the text is a copy of the prompt.
    assert offered.tolist() == [0, 0, 5, 5, 5]
    assert accepted.tolist() == [0, 0, 2, 1, 0]
