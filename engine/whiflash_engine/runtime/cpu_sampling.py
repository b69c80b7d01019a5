"""Two mends for sampling in vLLM 0.32's CPU runner.

*A temperature with draft tokens.* ``expand_batch_to_tokens`` spreads one value per request (temperature, top-k,
top-p) over that request's draft rows. On the CPU its kernel wrapper (``vllm/utils/cpu_triton_utils.py``,
``_expand_kernel_impl``) casts the values to integers and writes into a copy that is thrown away, so draft rows
are divided by whatever memory held: sampled text turns to noise, with any drafter. Greedy decoding does not come
this way.

*A seed with a prompt of several chunks.* The runner samples a token after every chunk and throws it away before
the last; it then turns the request's generator back by its offset, which generators on the CPU do not have, and
the engine dies. :func:`resting_generators` keeps those generators out of the draw instead.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

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


@contextmanager
def resting_generators(generators: dict[int, torch.Generator], rows: Iterable[int]) -> Iterator[None]:
    """Leave the generators of ``rows`` (batch indexes whose token will be thrown away) untouched meanwhile."""
    resting = {row: generators.pop(row) for row in rows if row in generators}
    try:
        yield
    finally:
        generators.update(resting)
