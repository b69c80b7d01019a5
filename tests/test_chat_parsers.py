"""ChatWhiFlash over vLLM's real templates, tokenizer and parsers; a script stands in for the model.

Each test is about a kind of public report (see the design's pitfalls): several tokens in one delta, calls that are
cut, calls without arguments, thoughts that end in the middle of a delta, strict templates, prompts that change.
"""

import asyncio
import re
from typing import Any

import pytest
import scripted_models
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langchain_core.exceptions import ContextOverflowError, ModelConnectionError, ModelInvalidRequestError
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, SystemMessage, ToolMessage
from scripted_models import model_on, plain_engine, thinking_engine

from whiflash_agent import ChatWhiFlash
from whiflash_agent.testing import ScriptedEngine, random_rounds, tool_call

TOOLS = [
    {"name": "look", "description": "", "parameters": {"type": "object", "properties": {"q": {"type": "string"}}}},
    {"name": "now", "description": "", "parameters": {"type": "object", "properties": {}}},
]
THOUGHT = "<think>\nWhere is it? Let me see: {a}.\n</think>\n\n"
ANSWERS = {
    "text": (plain_engine, "Grüße aus Zürich 北京, not a < tool > call."),
    "call": (plain_engine, tool_call("look", {"q": '日本 "quoted" {x} \\n <b>'})),
    "text and call": (plain_engine, "I look.\n" + tool_call("look", {"q": "a"})),
    "no arguments": (plain_engine, tool_call("now", {})),
    "two calls": (plain_engine, tool_call("now", {}) + "\n" + tool_call("look", {"q": "b"})),
    "nested arguments": (plain_engine, tool_call("look", {"q": {"a": [1, {"b": None}], "c": "}"}})),
    "thought and text": (thinking_engine, THOUGHT + "In Zürich."),
    "thought and call": (thinking_engine, THOUGHT + tool_call("look", {"q": "x"})),
    "thought, text and call": (thinking_engine, THOUGHT + "I look.\n" + tool_call("now", {})),
}


def summary(message: AIMessage) -> dict[str, Any]:
    return {
        "text": str(message.text).strip(),
        "reasoning": str(message.additional_kwargs.get("reasoning_content", "")).strip(),
        "calls": [(made["name"], made["args"]) for made in message.tool_calls],
        "invalid": [bad["name"] for bad in message.invalid_tool_calls],
        "finish_reason": message.response_metadata["finish_reason"],
    }


def total(chunks: list[AIMessageChunk]) -> AIMessageChunk:
    return sum(chunks[1:], chunks[0])


def ask(model: ChatWhiFlash, **call: Any) -> tuple[AIMessage, AIMessageChunk]:
    """Return the whole and the streamed answer."""
    bound = model.bind_tools(TOOLS, **call)
    return bound.invoke("Where?"), total(list(bound.stream("Where?")))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ANSWERS)
def test_the_parts_of_an_answer_are_told_apart(kind: str) -> None:
    engine, text = ANSWERS[kind]
    whole, streamed = ask(model_on(engine(), text))
    seen = summary(whole)
    assert summary(streamed) == seen
    assert seen["invalid"] == []
    assert [name for name, _ in seen["calls"]] == re.findall(r'\{"name": "(\w+)"', text)
    assert bool(seen["reasoning"]) == ("<think>" in text)
    assert not re.search("think>|tool_call>", seen["text"] + seen["reasoning"])
    assert seen["finish_reason"] == ("tool_calls" if seen["calls"] else "stop")


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(kind=st.sampled_from(sorted(ANSWERS)), seed=st.integers(0, 2**32))
def test_tokens_that_arrive_together_give_the_same_message(kind: str, seed: int) -> None:
    """Rounds of speculation emit several tokens per delta (vllm#41967, #30204, #42781)."""
    engine, text = ANSWERS[kind]
    whole = model_on(engine(), text).bind_tools(TOOLS).invoke("Where?")
    model = model_on(engine(), text, seed=seed)
    chunks = list(model.bind_tools(TOOLS).stream("Where?"))
    assert summary(total(chunks)) == summary(whole)  # type: ignore[arg-type]
    for chunk in chunks:
        kinds = (bool(chunk.content), bool(chunk.additional_kwargs), bool(chunk.tool_call_chunks))
        assert sum(kinds) <= 1, "one kind of content per chunk"


@pytest.mark.parametrize("seed", [None, 3])
async def test_event_streams_over_real_parsers_have_one_block_of_each_kind(seed: int | None) -> None:
    _, text = ANSWERS["thought, text and call"]
    model = model_on(thinking_engine(), text, seed=seed).bind_tools(TOOLS)
    stream = await model.astream_events("Where?", version="v3")  # type: ignore[attr-defined]
    finished = [e["content"]["type"] async for e in stream if e["event"] == "content-block-finish"]
    assert finished == ["reasoning", "text", "tool_call"]


CUT = tool_call("look", {"q": "a city"})


@pytest.mark.parametrize("choice", [None, "any", "look"])
@pytest.mark.parametrize("kept", range(1, 22, 2))
def test_a_call_that_is_cut_anywhere_is_reported_as_cut(choice: Any, kept: int) -> None:
    """Never completed, never silent: whether whole or streamed, chosen freely or forced."""
    model = model_on(plain_engine(), CUT, seed=kept, max_tokens=kept)
    whole, streamed = ask(model, tool_choice=choice)
    length = len(model.get_token_ids(CUT))
    assert kept < length, "the call is longer than what is kept of it"
    for message in (whole, streamed):
        assert message.response_metadata["finish_reason"] == "length"
        complete = [made for made in message.tool_calls if made["args"] != {"q": "a city"}]
        assert complete == [], "a cut call has fewer arguments, or none"
        if not message.tool_calls and (choice or "<tool_call>" in _written(model, kept)):
            assert message.invalid_tool_calls
    if whole.invalid_tool_calls:
        assert "cut off" in str(whole.invalid_tool_calls[0]["error"])


def _written(model: ChatWhiFlash, kept: int) -> str:
    engine = plain_engine()
    tokens = model.get_token_ids(CUT)[:kept]
    decoded: str = engine._service._up()[1].tokenizer.decode(tokens)
    return decoded


def test_a_call_that_is_no_json_is_reported() -> None:
    whole, streamed = ask(
        model_on(plain_engine(), '<tool_call>\n{"name": "look", "arguments": {"q": }\n</tool_call>')
    )
    for message in (whole, streamed):
        assert message.tool_calls == []
        assert [bad["name"] for bad in message.invalid_tool_calls] == ["look"]


def test_thoughts_go_back_to_the_template_and_prompts_stay_the_same() -> None:
    """The prompt of a turn begins with that of the turn before and its answer: else nothing of it is cached."""
    engine = thinking_engine()
    _, text = ANSWERS["thought and call"]
    model = model_on(engine, text).bind_tools(TOOLS)
    for stream in (False, True):
        history: list[Any] = [HumanMessage("Where?")]
        engine.prompts.clear()
        for turn in range(3):
            reply = total(list(model.stream(history))) if stream else model.invoke(history)  # type: ignore[arg-type]
            history += [reply, ToolMessage(f"result {turn}", tool_call_id=reply.tool_calls[0]["id"])]
        before = [prompt.split("<tools>")[0] for prompt in engine.prompts]
        assert "Where is it? Let me see" in before[1]
        assert before[1].startswith(before[0]) and before[2].startswith(before[1])
        details = (reply.usage_metadata or {}).get("input_token_details") or {}
        assert details.get("cache_read", 0) >= 16


def test_strict_templates_refuse_repeated_roles_unless_they_are_merged() -> None:
    late = [SystemMessage("s"), HumanMessage("a"), AIMessage("b"), SystemMessage("late"), HumanMessage("c")]
    doubled = [SystemMessage("s"), SystemMessage("t"), HumanMessage("a"), HumanMessage("b")]
    strict = model_on(thinking_engine(), THOUGHT + "ok")
    for messages in (doubled, late):
        with pytest.raises(ModelInvalidRequestError, match="merge_roles=True"):
            strict.invoke(messages)
        with pytest.raises(ModelInvalidRequestError, match="merge_roles=True"):
            list(strict.stream(messages))
        merged = model_on(thinking_engine(), THOUGHT + "ok", merge_roles=True)
        assert str(merged.invoke(messages).content).strip() == "ok"
        assert merged.get_num_tokens_from_messages(messages) > 0
    assert "late\n\nc<|im_end|>" in thinking_engine().prompts[-1]


def test_tokens_are_counted_as_the_template_writes_them() -> None:
    for engine in (plain_engine(), thinking_engine()):
        model = model_on(engine, "ok")
        history = [
            HumanMessage("Where?"),
            AIMessage(
                "",
                tool_calls=[{"name": "now", "args": {}, "id": "1"}],
                additional_kwargs={"reasoning_content": "hm"},
            ),
            ToolMessage("12:00", tool_call_id="1"),
        ]
        message = model.bind_tools(TOOLS).invoke(history)
        assert message.usage_metadata
        assert message.usage_metadata["input_tokens"] == model.get_num_tokens_from_messages(history, tools=TOOLS)
        assert model.get_num_tokens_from_messages(history) < message.usage_metadata["input_tokens"]
        assert model.get_num_tokens("Grüße") == len(model.get_token_ids("Grüße")) > 1


def test_a_stop_sequence_inside_a_token_ends_the_answer() -> None:
    model = model_on(plain_engine(), "one two three four", seed=1)
    assert model.invoke("q", stop=["hre"]).content == "one two t"
    streamed = total(list(model.stream("q", stop=["hre"])))
    assert (streamed.content, streamed.response_metadata["finish_reason"]) == ("one two t", "stop")


def test_no_answer_is_cut_silently() -> None:
    """``SamplingParams.max_tokens`` is 16 by default; and a prompt beyond the window is refused."""
    text = "word " * 100
    model = model_on(plain_engine(), text)
    assert model.invoke("q").content == text
    window = model.context_window()
    assert (model.profile or {})["max_input_tokens"] == window == 8192
    with pytest.raises(ContextOverflowError):
        model.invoke("word " * window)
    with pytest.raises(ContextOverflowError):
        list(model.stream("word " * window))
    # An answer that the window ends says so.
    last = model.invoke("word " * (window - 100), max_tokens=200)
    assert last.usage_metadata and last.usage_metadata["total_tokens"] == window
    assert last.response_metadata["finish_reason"] == "length"


async def test_leaving_and_cancelling_abort_in_the_engine() -> None:
    engine = plain_engine()
    model = model_on(engine, "word " * 2000)
    before = len(engine.aborted)
    engine.pause(0.01)
    stream = model.stream("q")
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    astream = model.astream("q")
    await anext(astream)
    await astream.aclose()  # type: ignore[attr-defined]
    async with asyncio.timeout(30):
        while engine.unfinished:
            await asyncio.sleep(0.001)
    task = asyncio.create_task(model.ainvoke("q"))
    while not engine.unfinished:
        await asyncio.sleep(0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with asyncio.timeout(30):
        while engine.unfinished:
            await asyncio.sleep(0.001)
    engine.pause(0)
    assert len(engine.aborted) - before == 3
    assert model_on(engine, "still there").invoke("q").content == "still there"


def test_one_event_loop_per_call_is_no_trouble() -> None:
    """The engine lives on a loop of its own (vllm#17208: attached to a different loop)."""
    model = model_on(plain_engine(), "ok")

    async def both() -> list[Any]:
        return [await model.ainvoke("q"), *await model.abatch(["a", "b"])]

    for _ in range(3):
        assert [message.content for message in asyncio.run(both())] == ["ok"] * 3


def test_a_crash_is_retryable_and_the_next_call_starts_anew() -> None:
    crashes = iter([True, False, True, False])

    def script(prompt: str) -> str:
        if next(crashes):
            raise RuntimeError("the core went away")
        return "back again"

    with ChatWhiFlash(backend=ScriptedEngine(script)) as model:
        with pytest.raises(ModelConnectionError) as error:
            model.invoke("q")
        assert error.value.is_retryable
        assert model.invoke("q").content == "back again"
        retrying = model.with_retry(retry_if_exception_type=(ModelConnectionError,), stop_after_attempt=2)
        assert retrying.invoke("q").content == "back again"


def test_random_rounds_lose_no_token() -> None:
    tokens = list(range(100))
    rounds = random_rounds(1)(tokens)
    assert [token for part in rounds for token in part] == tokens
    assert len(rounds) > 10 and scripted_models.plain_engine() is plain_engine()
