"""N-gram lookup: the tokens that followed where this request's text said the same before.

No model and no cache: what ends the text is looked up in the prompt and output before it. Agents copy what they
read (an edit repeats the file, a retry the call), and copied text is drafted whole. The search is vLLM's
(``ngram_proposer.py``). Source: prompt lookup decoding, vLLM's ``ngram`` method.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from vllm.v1.spec_decode.ngram_proposer import _find_longest_matched_ngram_and_propose_tokens

from whiflash_engine.drafters.base import ContextRows, RoundBatch

MIN_MATCH = 2
MAX_MATCH = 5
"""Tokens that must agree: fewer match anywhere, more find nothing."""


def lookup(text: NDArray[np.int32], max_tokens: int) -> list[int]:
    """Return up to ``max_tokens`` tokens that followed the (first) longest match of the ending of ``text``."""
    found = _find_longest_matched_ngram_and_propose_tokens(
        text, MIN_MATCH, MAX_MATCH, len(text) + max_tokens, max_tokens
    )
    tokens: list[int] = found.tolist()
    return tokens


class NgramDrafter:
    """Drafts up to ``max_tokens`` tokens where the text repeats itself, else nothing."""

    name = "ngram"
    tap_layers: tuple[int, ...] = ()

    def __init__(self, max_tokens: int, max_positions: int) -> None:
        self.max_tokens = max_tokens
        self.max_positions = max_positions
        lookup(np.zeros(8, dtype=np.int32), 1)  # compiles the search now, not in a user's first round

    def offers(self, batch: RoundBatch, index: int) -> int:
        """Return how many tokens followed the match, 0 if there is none."""
        return len(self._find(batch, index))

    def write_context(self, rows: ContextRows) -> None:
        """Do nothing: the tokens are all there is."""

    def propose(self, batch: RoundBatch, chosen: Sequence[int], lengths: Sequence[int]) -> list[list[int]]:
        """Return up to ``lengths`` tokens for each chosen request."""
        return [self._find(batch, index)[:length] for index, length in zip(chosen, lengths, strict=True)]

    def _find(self, batch: RoundBatch, index: int) -> list[int]:
        return lookup(batch.token_ids[index, : batch.num_tokens[index]], self.max_tokens)
