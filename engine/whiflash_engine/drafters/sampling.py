"""Draft tokens from a drafter's hidden states. Drafts are always greedy: exact under any target sampling."""

from typing import Any

import torch


def greedy_tokens(model: Any, hidden: torch.Tensor) -> torch.Tensor:
    """Return the best target id per row of ``hidden`` [rows, width], as [rows] int32.

    The argmax is taken in the draft vocabulary and mapped by its offsets; vLLM's ``compute_logits`` would
    first scatter every row into the target's vocabulary.
    """
    best: torch.Tensor = model.logits_processor(model.lm_head, hidden).argmax(dim=-1)
    if model.draft_id_to_target_id is not None:
        best = best + model.draft_id_to_target_id[best]
    return best.int()
