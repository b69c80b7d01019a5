"""Attention metadata for drafting: a few uniform queries per request over the shared paged cache."""

from typing import Any

import torch
from vllm.v1.attention.backend import CommonAttentionMetadata


def slots_of(block_table: torch.Tensor, positions: torch.Tensor, block_size: int) -> torch.Tensor:
    """Return the KV slots of ``positions`` [requests, n] under ``block_table`` [requests, blocks]."""
    blocks = torch.gather(block_table.long(), 1, positions // block_size)
    return blocks * block_size + positions % block_size


def uniform_queries(
    *,
    seq_lens: torch.Tensor,
    block_table: torch.Tensor,
    slots: torch.Tensor,
    queries: int,
    causal: bool,
) -> CommonAttentionMetadata:
    """Describe ``queries`` query rows per request whose keys reach up to ``seq_lens`` [requests]."""
    requests = seq_lens.shape[0]
    starts_cpu = torch.arange(0, (requests + 1) * queries, queries, dtype=torch.int32)
    starts = starts_cpu.to(seq_lens.device)
    return CommonAttentionMetadata(
        query_start_loc=starts,
        query_start_loc_cpu=starts_cpu,
        seq_lens=seq_lens,
        seq_lens_cpu_upper_bound=seq_lens.cpu(),
        num_reqs=requests,
        num_actual_tokens=requests * queries,
        max_query_len=queries,
        max_seq_len=int(seq_lens.max()),
        block_table_tensor=block_table,
        slot_mapping=slots,
        causal=causal,
    )


def layer_metadata(loader: Any, attention: CommonAttentionMetadata, step: int) -> dict[str, Any]:
    """Return each draft layer's attention metadata; ``loader`` is the vLLM proposer that owns the layers."""
    _, per_layer = loader.build_per_group_and_layer_attn_metadata(attention, draft_index=step)
    return dict(per_layer)
