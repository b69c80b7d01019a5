"""What a request may ask of sampling comes out the same with every arm as without speculation."""

import asyncio
import json
from typing import Any

import pytest

from whiflash_engine.errors import RequestError

pytestmark = pytest.mark.engine

ARMS = ("eagle3", "dflash", "ngram", "entropy", "neural", "cost")
QUESTION = "Write a Python function that counts the vowels of a text, then one that counts its words."
SCHEMAS: dict[str, dict[str, Any]] = {
    "flat": {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer"}},
        "required": ["name", "age"],
        "additionalProperties": False,
    },
    "choice": {"enum": ["red", "green", "blue"]},
    "nested": {
        "type": "object",
        "properties": {
            "edits": {
                "type": "array",
                "minItems": 1,
                "maxItems": 2,
                "items": {
                    "type": "object",
                    "properties": {"line": {"type": "integer"}, "text": {"type": "string", "maxLength": 30}},
                    "required": ["line", "text"],
                    "additionalProperties": False,
                },
            }
        },
        "required": ["edits"],
        "additionalProperties": False,
    },
    "empty": {"type": "object", "properties": {}, "additionalProperties": False},
}


def body(router: str, **fields: Any) -> dict[str, Any]:
    return {
        "messages": [{"role": "user", "content": QUESTION}],
        "temperature": 0,
        "max_tokens": 40,
        "return_token_ids": True,
        "vllm_xargs": {"whiflash_router": router},
        **fields,
    }


def together(engine: Any, bodies: list[dict[str, Any]]) -> list[dict[str, Any]]:
    async def ask() -> list[dict[str, Any]]:
        return await asyncio.gather(*(engine.achat(one) for one in bodies))

    return asyncio.run(ask())


def same_as_off(engine: Any, **fields: Any) -> list[dict[str, Any]]:
    """Ask every arm at once, and plain decoding; return the arms' answers after comparing tokens."""
    plain = engine.chat(body("off", **fields))["choices"][0]
    answers = [answer["choices"][0] for answer in together(engine, [body(arm, **fields) for arm in ARMS])]
    for arm, answer in zip(ARMS, answers, strict=True):
        assert answer["token_ids"] == plain["token_ids"], arm
        assert answer["finish_reason"] == plain["finish_reason"], arm
    return [plain, *answers]


def test_logprobs(engine: Any) -> None:
    plain, *answers = same_as_off(engine, logprobs=True, top_logprobs=3)
    expected = plain["logprobs"]["content"]
    assert len(expected) == len(plain["token_ids"])
    for answer in answers:
        found = answer["logprobs"]["content"]
        assert [entry["token"] for entry in found] == [entry["token"] for entry in expected]
        for mine, theirs in zip(found, expected, strict=True):
            assert mine["logprob"] == pytest.approx(theirs["logprob"], abs=1e-3)
            tops = [{top["token"]: top["logprob"] for top in entry["top_logprobs"]} for entry in (mine, theirs)]
            assert tops[0] == pytest.approx(tops[1], abs=1e-3)


@pytest.mark.parametrize(
    "penalty", [{"frequency_penalty": 0.8}, {"presence_penalty": 1.2}, {"repetition_penalty": 1.3}]
)
def test_penalties(engine: Any, penalty: dict[str, float]) -> None:
    plain, *_ = same_as_off(engine, **penalty)
    assert plain["token_ids"] != engine.chat(body("off"))["choices"][0]["token_ids"]


def test_bad_words(engine: Any) -> None:
    free = engine.chat(body("off", whiflash_trace=True))
    token = free["choices"][0]["token_ids"][6]
    banned = free["whiflash"]["token_texts"][6].strip()
    for answer in same_as_off(engine, bad_words=[banned]):
        assert token not in answer["token_ids"], banned


def test_stop_strings_and_stop_tokens(engine: Any) -> None:
    whole = engine.chat(body("off"))["choices"][0]
    middle = whole["message"]["content"][60:66]
    for answer in same_as_off(engine, stop=[middle]):
        assert answer["finish_reason"] == "stop"
        assert middle not in answer["message"]["content"]
    for answer in same_as_off(engine, stop_token_ids=[whole["token_ids"][17]]):
        assert answer["finish_reason"] == "stop"
        assert len(answer["token_ids"]) <= 18


def test_least_tokens(engine: Any) -> None:
    fields = {"messages": [{"role": "user", "content": "Say hello."}], "min_tokens": 30}
    plain, *_ = same_as_off(engine, **fields)
    assert len(plain["token_ids"]) >= 30


@pytest.mark.parametrize("name", SCHEMAS)
def test_structured_output(engine: Any, name: str) -> None:
    schema = {"name": name, "schema": SCHEMAS[name], "strict": True}
    fields = {"response_format": {"type": "json_schema", "json_schema": schema}, "max_tokens": 120}
    for answer in same_as_off(engine, **fields):
        value = json.loads(answer["message"]["content"])
        assert (
            value in ("red", "green", "blue")
            if name == "choice"
            else set(value) == set(SCHEMAS[name]["properties"])
        )


def test_many_schemas_at_once(engine: Any) -> None:
    """Grammars of different requests do not reach into each other's drafts."""

    def asked(router: str, name: str) -> dict[str, Any]:
        schema = {"name": name, "schema": SCHEMAS[name], "strict": True}
        return body(router, response_format={"type": "json_schema", "json_schema": schema}, max_tokens=120)

    pairs = [(arm, name) for name in SCHEMAS for arm in ("eagle3", "dflash", "cost")]
    answers = together(engine, [asked(arm, name) for arm, name in pairs])
    plain = {name: engine.chat(asked("off", name)) for name in SCHEMAS}
    for (arm, name), answer in zip(pairs, answers, strict=True):
        assert answer["choices"][0]["token_ids"] == plain[name]["choices"][0]["token_ids"], (arm, name)


@pytest.mark.parametrize("arm", ["off", *ARMS])
def test_several_answers_to_one_request(engine: Any, arm: str) -> None:
    fields = {"n": 3, "temperature": 0.9, "seed": 5, "max_tokens": 24, "whiflash_trace": True}
    answer = engine.chat(body(arm, **fields))
    texts = [choice["message"]["content"] for choice in answer["choices"]]
    assert len(set(texts)) == 3
    for choice, figures in zip(answer["choices"], answer["whiflash"]["choices"], strict=True):
        assert figures["token_ids"] == choice["token_ids"]
        # The first token is the prompt's; every other belongs to one round.
        assert sum(record["accepted"] + 1 for record in figures["trace"]) == len(choice["token_ids"]) - 1
    rounds = [figures["rounds"] for figures in answer["whiflash"]["choices"]]
    assert answer["whiflash"]["rounds"] == sum(rounds)


@pytest.mark.parametrize("option", [{"min_p": 0.1}, {"logit_bias": {"5": -10.0}}])
def test_what_vllm_cannot_do_with_speculation_is_refused(engine: Any, option: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match="not yet supported with speculative decoding"):
        engine.chat(body("eagle3", **option | {"temperature": 0.7}))
    assert engine.chat(body("eagle3"))["choices"][0]["token_ids"]
