"""Agents resend their whole history every turn: a prefix-cache hit must serve every drafter, the idle one too."""

from collections.abc import Iterator
from typing import Any

import pytest

pytestmark = pytest.mark.engine

RULES = " ".join(f"Rule {number}: fruit number {number} costs {number * 7 % 30} coins." for number in range(1, 16))
REQUESTS = (
    f"{RULES} I keep a list of fruits: apple, pear, plum. Say what the list holds.",
    "Add banana and cherry to the list and show it.",
    "Write the list as a Python list named fruits.",
    "Write a Python function that returns the longest fruit of the list.",
    "Remove plum and show the list.",
    "Write the list as JSON.",
)


def turns(
    engine: Any, routers: list[str], salt: str | None
) -> Iterator[tuple[list[tuple[int, int]], list[int], int]]:
    """Yield (drafted and accepted by round, token ids, cached prompt tokens) of every turn of a conversation.

    Without a ``salt`` every turn is cold: nothing of what came before is found in the cache.
    """
    messages: list[dict[str, str]] = []
    for number, (request, router) in enumerate(zip(REQUESTS, routers, strict=True)):
        messages.append({"role": "user", "content": request})
        answer = engine.chat(
            {
                "messages": messages,
                "temperature": 0,
                "max_tokens": 72,
                "return_token_ids": True,
                "whiflash_trace": True,
                "cache_salt": salt or f"cold-{number}-{'-'.join(routers)}",
                "vllm_xargs": {"whiflash_router": router},
            }
        )
        messages.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"]})
        rounds = [(record["drafted"], record["accepted"]) for record in answer["whiflash"]["trace"]]
        cached = (answer["usage"]["prompt_tokens_details"] or {}).get("cached_tokens") or 0
        yield rounds, answer["choices"][0]["token_ids"], cached


@pytest.mark.parametrize(
    "routers", [["eagle3", "dflash"] * 3, ["off", "eagle3", "off", "dflash", "ngram", "eagle3"]]
)
def test_every_turn_drafts_as_if_nothing_had_been_cached(engine: Any, routers: list[str]) -> None:
    """A drafter that was idle in a turn reads that turn's rows from the cache in the next; drafts must not differ.

    Drafts follow from the drafter's K/V alone, so equal drafts and acceptance in every round, against a cold run,
    mean that no row was stale. (Public reports of the failure: vllm#47930.)
    """
    warm = list(turns(engine, routers, salt=f"warm-{'-'.join(routers)}"))
    cold = list(turns(engine, routers, salt=None))
    assert warm[-1][2] >= 256, "the last turn found what came before in the cache"
    assert cold[-1][2] == 0
    for (rounds, tokens, _), (cold_rounds, cold_tokens, _) in zip(warm, cold, strict=True):
        assert tokens == cold_tokens
        assert rounds == cold_rounds
    assert any(accepted for rounds, *_ in warm for _, accepted in rounds)
