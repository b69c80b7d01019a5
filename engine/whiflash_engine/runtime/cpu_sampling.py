"""A mend for vLLM 0.32's CPU rejection sampler: sampling at a temperature with draft tokens.

``expand_batch_to_tokens`` spreads one value per request (temperature, top-k, top-p) over that request's draft
rows. On the CPU its kernel wrapper (``vllm/utils/cpu_triton_utils.py``, ``_expand_kernel_impl``) casts the
values to integers and writes into a copy that is thrown away, so draft rows are divided by whatever memory
held: sampled text turns to noise, with any drafter. Greedy decoding does not come this way.
"""

import torch
from vllm.v1.sample import rejection_sampler


def expand_batch_to_tokens(
    x: torch.Tensor, cu_num_tokens: torch.Tensor, num_tokens: int, replace_from: int = 0, replace_to: int = 0
) -> torch.Tensor:
    """Return [num_tokens]: each ``x`` [requests] repeated for its tokens, ``replace_from`` made ``replace_to``.

    ``cu_num_tokens`` [requests]: cumulative token counts.
    """
    counts = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1))
    values = torch.where(x == replace_from, torch.as_tensor(replace_to, dtype=x.dtype), x)
    return torch.repeat_interleave(values, counts.long(), output_size=num_tokens)


def mend_cpu_sampling() -> None:
    """Put the function in the place of vLLM's; harmless when called again."""
    rejection_sampler.expand_batch_to_tokens = expand_batch_to_tokens
