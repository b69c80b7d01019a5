"""Sampling with draft tokens keeps the target's distribution."""

import asyncio
from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

QUESTION = "Name a colour. Answer with one word."
SAMPLES = 160


def expanded(values: list[float], counts: list[int], replace_from: int = 0, replace_to: int = 0) -> list[float]:
    from whiflash_engine.runtime.cpu_sampling import expand_batch_to_tokens

    cumulative = torch.tensor(counts).cumsum(0).to(torch.int32)
    result = expand_batch_to_tokens(torch.tensor(values), cumulative, sum(counts), replace_from, replace_to)
    return [float(value) for value in result]


@settings(deadline=None)  # the first example imports vLLM
@given(st.lists(st.tuples(st.sampled_from([0.0, 0.25, 0.5, 1.5]), st.integers(0, 4)), min_size=1, max_size=6))
def test_each_requests_value_is_spread_over_its_draft_rows(pairs: list[tuple[float, int]]) -> None:
    values, counts = [value for value, _ in pairs], [count for _, count in pairs]
    expected = [value or 1.0 for value, count in pairs for _ in range(count)]
    assert expanded(values, counts, replace_from=0, replace_to=1) == expected


def test_integers_stay_integers() -> None:
    from whiflash_engine.runtime.cpu_sampling import expand_batch_to_tokens

    top_k = expand_batch_to_tokens(torch.tensor([5, 9], dtype=torch.int32), torch.tensor([2, 3]), 3)
    assert top_k.tolist() == [5, 5, 9]
    assert top_k.dtype == torch.int32


def chi_square(first: Counter[Any], second: Counter[Any]) -> tuple[float, int]:
    """Return the two-sample statistic for equal sample sizes, and its degrees of freedom; rare cells pooled."""
    cells = {token for token in first | second if first[token] + second[token] >= 10}
    pairs = [(first[token], second[token]) for token in cells]
    rest = (sum(first.values()) - sum(a for a, _ in pairs), sum(second.values()) - sum(b for _, b in pairs))
    if sum(rest):
        pairs.append(rest)
    return sum((a - b) ** 2 / (a + b) for a, b in pairs), len(pairs) - 1


def sample_many(engine: Any, router: str, first_seed: int) -> list[tuple[int, ...]]:
    async def sample(seed: int) -> tuple[int, ...]:
        answer = await engine.achat(
            {
                "messages": [{"role": "user", "content": QUESTION}],
                "temperature": 0.9,
                "seed": seed,
                "max_tokens": 4,
                "ignore_eos": True,
                "return_token_ids": True,
                "vllm_xargs": {"whiflash_router": router},
            }
        )
        return tuple(answer["choices"][0]["token_ids"])

    async def all_of_them() -> list[tuple[int, ...]]:
        return await asyncio.gather(*(sample(first_seed + number) for number in range(SAMPLES)))

    return asyncio.run(all_of_them())


@pytest.fixture(scope="module")
def plain_samples(engine: Any) -> list[tuple[int, ...]]:
    return sample_many(engine, "off", 5000)


@pytest.mark.engine
@pytest.mark.parametrize("router", ["eagle3", "dflash", "cost"])
def test_sampled_tokens_follow_the_targets_distribution(
    engine: Any, plain_samples: list[tuple[int, ...]], router: str
) -> None:
    """The second to fourth tokens, which come out of rejection sampling, against those of plain decoding."""
    drafted = sample_many(engine, router, 0)
    for position in (1, 2, 3):
        statistic, freedom = chi_square(
            Counter(tokens[position] for tokens in drafted),
            Counter(tokens[position] for tokens in plain_samples),
        )
        # Mean of the distribution plus five standard deviations: noise stays below it, a wrong sampler does not.
        assert statistic < freedom + 5 * (2 * max(freedom, 1)) ** 0.5, (position, statistic, freedom)
