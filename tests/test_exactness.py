"""Speculation changes no token: every router's greedy output equals plain decoding in the same engine."""

import asyncio
from typing import Any

import pytest

pytestmark = pytest.mark.engine

ROUTERS = ["eagle3", "dflash", "ngram", "entropy", "neural", "cost"]
PROMPTS = [
    "Write a Python function that returns the largest item of a list.",
    "Plan, in three steps, how to find a bug in a parser.",
    "Say hello.",
    'Return a JSON object with the keys "name" and "age" for a person you make up.',
]


def body(prompt: str, router: str, **fields: Any) -> dict[str, Any]:
    return {
        "messages": [{"role": "user", "content": prompt}],
        "temperature": 0,
        "max_tokens": 48,
        "return_token_ids": True,
        "whiflash_trace": True,
        "vllm_xargs": {"whiflash_router": router},
        **fields,
    }


def tokens(answer: dict[str, Any]) -> list[int]:
    return list(answer["choices"][0]["token_ids"])


def together(engine: Any, bodies: list[dict[str, Any]]) -> list[dict[str, Any]]:
    async def ask() -> list[dict[str, Any]]:
        return await asyncio.gather(*(engine.achat(one) for one in bodies))

    return asyncio.run(ask())


@pytest.fixture(scope="module")
def plain(engine: Any) -> dict[str, dict[str, Any]]:
    return {prompt: engine.chat(body(prompt, "off")) for prompt in PROMPTS}


@pytest.mark.parametrize("router", ROUTERS)
def test_one_request_at_a_time(engine: Any, plain: dict[str, Any], router: str) -> None:
    drafted = 0
    for prompt in PROMPTS:
        answer = engine.chat(body(prompt, router))
        assert tokens(answer) == tokens(plain[prompt])
        assert answer["choices"][0]["message"]["content"] == plain[prompt]["choices"][0]["message"]["content"]
        drafted += answer["whiflash"]["drafted"]
    assert drafted > 0


def test_mixed_routers_in_one_batch(engine: Any, plain: dict[str, Any]) -> None:
    pairs = [(PROMPTS[n % len(PROMPTS)], router) for n, router in enumerate([*ROUTERS, "off"] * 2)]
    answers = together(engine, [body(prompt, router) for prompt, router in pairs])
    for (prompt, router), answer in zip(pairs, answers, strict=True):
        assert tokens(answer) == tokens(plain[prompt]), (prompt, router)
    drafters = {name for answer in answers for name in answer["whiflash"]["share_by_drafter"]}
    assert drafters >= {"eagle3", "dflash", "ngram", "none"}


def test_lookup_copies_what_the_prompt_says(engine: Any) -> None:
    text = "alpha = 17\nbeta = alpha + 29\ngamma = beta * alpha - 31\ndelta = gamma // beta\n"
    fields = {"max_tokens": 40, "messages": [
        {"role": "user", "content": f"Repeat this file.\n{text}"},
        {"role": "assistant", "content": text},
        {"role": "user", "content": f"Repeat it once more.\n{text}"},
    ]}  # fmt: skip
    plain, answer = (engine.chat(body("", router, **fields)) for router in ("off", "ngram"))
    assert tokens(answer) == tokens(plain)
    assert answer["whiflash"]["mean_acceptance_length"] > 1.5


@pytest.mark.parametrize("router", ROUTERS)
def test_prompt_over_several_prefill_chunks(engine: Any, router: str) -> None:
    """The engine of the tests takes 384 rows a step; these prompts need three steps, and share a prefix."""
    story = " ".join(f"Item {number} costs {number * 7 % 50} coins." for number in range(90))
    salted = {"cache_salt": f"chunks-{router}"}
    plain = engine.chat(body(story + " Which item is cheapest?", "off", cache_salt="chunks-off"))
    assert plain["usage"]["prompt_tokens"] > 2 * 384
    cold = engine.chat(body(story + " Which item is cheapest?", router, **salted))
    warm = engine.chat(body(story + " Which item is cheapest?", router, **salted))
    assert warm["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    assert tokens(cold) == tokens(warm) == tokens(plain)


def test_records_account_for_every_token(engine: Any) -> None:
    """Rounds are contiguous: each begins where the one before ended, and the last ends the answer."""
    answer = engine.chat(body(PROMPTS[0], "entropy"))
    position = 1  # the first token comes from the prompt's own step, not from a round
    for record in answer["whiflash"]["trace"]:
        assert record["position"] == position
        assert 0 <= record["accepted"] <= record["drafted"] or record["drafted"] == 0
        position += record["accepted"] + 1
    assert position == len(tokens(answer)) == answer["usage"]["completion_tokens"]


@pytest.mark.parametrize("drafter", ["eagle3", "dflash", "ngram"])
def test_a_survey_foretells_every_round(engine: Any, plain: dict[str, Any], drafter: str) -> None:
    """Replaying what all drafters said at every token gives the very rounds that one of them alone makes."""
    answer = engine.chat(body(PROMPTS[0], "survey"))
    assert tokens(answer) == tokens(plain[PROMPTS[0]])
    alone = engine.chat(body(PROMPTS[0], drafter))["whiflash"]["trace"]
    said = {record["position"]: record["survey"].get(drafter, []) for record in answer["whiflash"]["trace"]}
    for record in alone:
        draft, following = said[record["position"]], tokens(answer)[record["position"] :]
        right = [a == b for a, b in zip(draft, following, strict=False)] + [False]
        assert record["drafted"] in (len(draft), 0), "the token budget may cut the last draft"
        assert record["accepted"] == min(right.index(False), record["drafted"], len(following) - 1)


def test_entropy_router_follows_its_signal(engine: Any) -> None:
    from whiflash_engine.checkpoints.registry import resolve

    threshold = resolve(engine.config.whiflash).router_threshold
    answer = engine.chat(body(PROMPTS[1], "entropy", max_tokens=64))
    for record in answer["whiflash"]["trace"]:
        expected = "eagle3" if record["signal"]["entropy"] > threshold else "dflash"
        assert record["drafter"] == expected


@pytest.mark.parametrize("router", ROUTERS)
def test_stops_by_length_and_by_eos(engine: Any, router: str) -> None:
    for limit in (1, 2, 7):
        answer = engine.chat(body(PROMPTS[0], router, max_tokens=limit))
        assert answer["choices"][0]["finish_reason"] == "length"
        assert len(tokens(answer)) == limit
    plain = engine.chat(body("Say hello.", "off", max_tokens=200))
    answer = engine.chat(body("Say hello.", router, max_tokens=200))
    assert plain["choices"][0]["finish_reason"] == "stop"
    assert tokens(answer) == tokens(plain)


@pytest.mark.parametrize("router", ROUTERS)
def test_abort_leaves_the_engine_exact(engine: Any, plain: dict[str, Any], router: str) -> None:
    endless = body("Count upwards for ever.", router, max_tokens=1500, ignore_eos=True)
    stream = engine.stream(endless)
    for _, _chunk in zip(range(5), stream, strict=False):
        pass
    stream.close()
    answer = engine.chat(body(PROMPTS[0], router))
    assert tokens(answer) == tokens(plain[PROMPTS[0]])


def test_sampling_with_a_seed_repeats_itself(engine: Any) -> None:
    once, again = (
        engine.chat(body(PROMPTS[1], "entropy", temperature=0.8, seed=7, cache_salt="seeded")) for _ in "ab"
    )
    assert tokens(once) == tokens(again)


def test_a_seeded_request_is_not_routed_by_the_clock(engine: Any) -> None:
    """The engine's own router goes by measured times; a request that must repeat itself goes by entropy."""
    fields = {"temperature": 0.8, "seed": 7, "vllm_xargs": {}}
    routers = [engine.chat(body(PROMPTS[1], "", **fields | extra))["whiflash"]["trace"][0]["router"]
               for extra in ({}, {"seed": None}, {"temperature": 0})]  # fmt: skip
    assert routers == ["entropy", "cost", "cost"]


def test_a_seed_and_a_prompt_of_several_chunks(engine: Any) -> None:
    """vLLM 0.32's CPU runner dies of this pair; the seed must also be spent alike however the prompt was cut."""
    story = " ".join(f"Item {number} costs {number * 7 % 50} coins." for number in range(90))
    fields = {"temperature": 0.8, "seed": 11, "cache_salt": "seed-and-chunks", "max_tokens": 16}
    cold, warm = (engine.chat(body(story + " Which is cheapest?", "entropy", **fields)) for _ in "ab")
    assert warm["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    assert tokens(cold) == tokens(warm)


@pytest.mark.parametrize("router", ROUTERS)
def test_forced_tool_call_is_the_same_and_follows_the_schema(engine: Any, router: str) -> None:
    import json

    schema = {
        "type": "object",
        "properties": {"path": {"type": "string"}, "line": {"type": "integer"}},
        "required": ["path", "line"],
        "additionalProperties": False,
    }
    tool = {"type": "function", "function": {"name": "view", "parameters": schema, "strict": True}}
    fields = {"tools": [tool], "tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 100}
    plain = engine.chat(body("Show line 12 of main.py.", "off", **fields))
    answer = engine.chat(body("Show line 12 of main.py.", router, **fields))
    assert tokens(answer) == tokens(plain)
    calls = answer["choices"][0]["message"]["tool_calls"]
    arguments = json.loads(calls[0]["function"]["arguments"])
    assert calls[0]["function"]["name"] == "view"
    assert isinstance(arguments["path"], str)
    assert isinstance(arguments["line"], int)


def test_the_cost_router_is_refused_where_workers_must_agree() -> None:
    from whiflash_engine.config import EngineConfig, build_config
    from whiflash_engine.errors import ConfigError
    from whiflash_engine.service.engine import EngineService

    config = EngineConfig(whiflash=build_config(router="cost"), vllm_args={"tensor_parallel_size": 2})
    with pytest.raises(ConfigError, match="router 'cost' with tensor_parallel_size=2"):
        EngineService(config).start()
