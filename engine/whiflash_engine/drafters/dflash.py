"""DFlash: a block-diffusion drafter; one pass drafts the whole block.

Model files, loading and the context write are vLLM's (``qwen3_dflash.py``, ``DFlashProposer``). A round asks
it for the chosen requests alone: queries are the sampled token and ``max_tokens`` masks, attending to the
context rows and to each other. Source: DFlash (arXiv 2602.06036).
"""

from collections.abc import Sequence

import torch
from torch.nn import functional as F

from whiflash_engine.drafters.base import ContextRows, RoundBatch
from whiflash_engine.drafters.hosted import HostedDrafter, slots_of, uniform_queries


class DFlashDrafter(HostedDrafter):
    """Drafts a block of up to ``max_tokens`` tokens in one pass."""

    name = "dflash"
    offered: int
    """Tokens of a block that are put to the target."""
    _short_head: torch.Tensor | None = None
    _vocabulary: torch.Tensor | None = None

    def offers(self, batch: RoundBatch, index: int) -> int:
        """Return how many of a block's tokens are worth verifying."""
        return self.offered

    def shorten_head(self, vocabulary: torch.Tensor) -> None:
        """Draft from the target ids in ``vocabulary`` [tokens] only: the head's rows for the others go unread."""
        self._short_head = self.loader.model.lm_head.weight[vocabulary]
        self._vocabulary = vocabulary.int()

    def greedy_tokens(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the best target id per row of ``hidden`` [rows, width], as [rows] int32."""
        if self._short_head is None or self._vocabulary is None:
            return super().greedy_tokens(hidden)
        return self._vocabulary[F.linear(hidden, self._short_head).argmax(dim=-1)]

    def write_context(self, rows: ContextRows) -> None:
        """Write K and V of the rows in every layer: projections of the fused target features."""
        self.loader.model.precompute_and_store_context_kv(self.fuse(rows.features), rows.positions, rows.slots)

    def propose(self, batch: RoundBatch, chosen: Sequence[int], lengths: Sequence[int]) -> list[list[int]]:
        """Return ``lengths`` draft tokens for each chosen request. The last row's context is written here.

        The block always has its whole size; a shorter draft saves the head's rows and the target's.
        """
        longest = max(lengths)
        requests = torch.tensor(chosen, device=batch.last_rows.device)
        last = batch.rows.take(batch.last_rows[requests])
        self.write_context(last)
        queries = 1 + self.max_tokens
        tokens = last.next_token_ids.new_full((len(chosen), queries), self.loader.parallel_drafting_token_id)
        tokens[:, 0] = last.next_token_ids
        positions = last.positions[:, None] + torch.arange(1, queries + 1, device=last.positions.device)
        block_table = batch.block_table[requests]
        attention = uniform_queries(
            seq_lens=batch.seq_lens[requests] + queries,
            block_table=block_table,
            slots=slots_of(block_table, positions, batch.block_size).flatten(),
            queries=queries,
            causal=self.loader.dflash_causal,
        )
        hidden = self.forward(attention, 0, input_ids=tokens.flatten(), positions=positions.flatten())
        masks = hidden.view(len(chosen), queries, -1)[:, 1 : 1 + longest].flatten(0, 1)
        drafts: list[list[int]] = self.greedy_tokens(masks).view(len(chosen), longest).tolist()
        return [draft[:length] for draft, length in zip(drafts, lengths, strict=True)]
