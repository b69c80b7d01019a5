"""Answers as messages: whole, streamed at any cut, cut off, with tools and thoughts. No engine runs."""

import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.exceptions import ModelConnectionError
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    HumanMessage,
    SystemMessage,
    ToolMessage,
    message_chunk_to_message,
)

from whiflash_agent import ChatWhiFlash
from whiflash_agent._answers import Expected, StreamReader, read_completion
from whiflash_agent._messages import to_openai
from whiflash_agent.testing import FIGURES, ScriptedBackend, answer, call, to_chunks

WEATHER = {
    "name": "get_weather",
    "description": "Weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
TOOLS = Expected(tools=True)


def streamed(completion: dict[str, Any], expected: Expected, cut: random.Random | None = None) -> AIMessageChunk:
    reader = StreamReader(expected)
    pieces = [piece for chunk in to_chunks(completion, cut) for piece in reader.feed(chunk)]
    total, *rest = [*pieces, *reader.finish()]
    for piece in rest:
        total = total + piece
    return total


def comparable(message: AIMessage) -> dict[str, Any]:
    """Everything of a message but the text of a broken call, to which a stream adds what keeps it broken."""
    data = (
        message_chunk_to_message(message).model_dump()
        if isinstance(message, AIMessageChunk)
        else message.model_dump()
    )
    data["invalid_tool_calls"] = [(bad["name"], bad["id"]) for bad in message.invalid_tool_calls]
    data["tool_calls"] = [(made["name"], made["args"], made["id"]) for made in message.tool_calls]
    return data


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-99, 99) | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
arguments = st.dictionaries(st.text(max_size=6), json_values, max_size=3).map(
    lambda value: json.dumps(value, ensure_ascii=False)
)


@st.composite
def completions(draw: st.DrawFn) -> dict[str, Any]:
    """Answers of every kind, one in three of them cut off somewhere in its last call."""
    calls = [call(f"tool_{i}", args, f"id-{i}") for i, args in enumerate(draw(st.lists(arguments, max_size=3)))]
    cut = bool(calls) and draw(st.integers(0, 2)) == 0
    if cut:
        whole = calls[-1]["function"]["arguments"]
        calls[-1]["function"]["arguments"] = whole[: draw(st.integers(0, len(whole) - 1))]
    return answer(
        draw(st.text(max_size=20)),
        reasoning=draw(st.text(max_size=20)),
        calls=calls,
        finish_reason="length" if cut else None,
    )


@settings(deadline=None)  # the machine may be busy
@given(completions(), st.integers(0, 2**32))
def test_any_cut_of_a_stream_gives_the_whole_message(completion: dict[str, Any], seed: int) -> None:
    whole = comparable(read_completion(completion, TOOLS))
    assert comparable(streamed(completion, TOOLS)) == whole
    assert comparable(streamed(completion, TOOLS, random.Random(seed))) == whole


@settings(deadline=None)
@given(arguments, st.data())
def test_a_cut_call_is_never_completed(args: str, data: st.DataObject) -> None:
    fragment = args[: data.draw(st.integers(0, len(args) - 1))]
    completion = answer(calls=[call("get_weather", fragment)], finish_reason="length")
    for message in (read_completion(completion, TOOLS), streamed(completion, TOOLS, random.Random(1))):
        assert message.tool_calls == []
        (bad,) = message.invalid_tool_calls
        assert bad["name"] == "get_weather"
        assert (bad["args"] or "").startswith(fragment)
        assert message.response_metadata["finish_reason"] == "length"


@pytest.mark.parametrize("args", ['"Paris"', "[1]", "null", "3", '{"city": }', "not json"])
def test_arguments_that_are_no_object_are_invalid(args: str) -> None:
    completion = answer(calls=[call("get_weather", args)])
    for message in (read_completion(completion, TOOLS), streamed(completion, TOOLS, random.Random(1))):
        assert message.tool_calls == []
        assert [bad["name"] for bad in message.invalid_tool_calls] == ["get_weather"]


@pytest.mark.parametrize(
    ("text", "expected", "name"),
    [
        ('Sure.\n<tool_call>\n{"name": "get_weather", "arguments": {"ci', TOOLS, "get_weather"),
        ("<function=get_weather>\n<parameter=city>Par", TOOLS, "get_weather"),
        ('<tool_call>\n{"na', TOOLS, None),
        ('{"city": "Par', Expected(True, True, "get_weather"), "get_weather"),
        ('[{"name": "get_weather", "parameters": {"city"', Expected(True, True), "get_weather"),
    ],
)
def test_a_call_left_in_the_text_is_reported(text: str, expected: Expected, name: str | None) -> None:
    """VLLM's parsers leave a call that was cut in ``content``, where no reader should take it for text."""
    completion = answer(text, finish_reason="length")
    whole = read_completion(completion, expected)
    opener = min((text.find(part) for part in ("<tool_call>", "<function=") if part in text), default=len(text))
    assert whole.content == text[:opener]
    for message in (whole, streamed(completion, expected, random.Random(1))):
        assert message.tool_calls == []
        assert "cut off" in str(whole.invalid_tool_calls[0]["error"])
        assert [bad["name"] for bad in message.invalid_tool_calls] == [name]
        assert message.response_metadata["finish_reason"] == "length"


def test_text_about_calls_is_text_if_no_tools_were_offered() -> None:
    completion = answer("<tool_call> opens a call")
    assert read_completion(completion, Expected()).invalid_tool_calls == []
    assert streamed(completion, Expected()).invalid_tool_calls == []


def test_a_call_without_arguments_has_empty_arguments() -> None:
    completion = answer(calls=[call("now", "")])
    for message in (read_completion(completion, TOOLS), streamed(completion, TOOLS)):
        assert [(made["name"], made["args"]) for made in message.tool_calls] == [("now", {})]


def test_a_repeated_name_is_told_once() -> None:
    reader = StreamReader(TOOLS)
    head = {"index": 0, "id": "a", "function": {"name": "now", "arguments": ""}}
    pieces = [
        piece
        for args in ("{", "}")
        for piece in reader.feed(
            {"choices": [{"delta": {"tool_calls": [head | {"function": {"name": "now", "arguments": args}}]}}]}
        )
    ]
    assert [p.tool_call_chunks[0]["name"] for p in pieces] == ["now", None]
    assert (pieces[0] + pieces[1]).tool_calls[0]["args"] == {}


def test_what_may_come_once_comes_on_the_last_chunk() -> None:
    model = ChatWhiFlash(backend=ScriptedBackend(answer("a b c d", reasoning="hm"), seed=3))
    chunks = list(model.stream("x"))
    once = {"model_name", "finish_reason", "whiflash"}
    assert len(chunks) > 3
    assert all(not once & set(chunk.response_metadata) and chunk.usage_metadata is None for chunk in chunks[:-1])
    last = chunks[-1]
    assert last.chunk_position == "last"
    assert last.response_metadata["model_name"] == "scripted"
    assert last.response_metadata["whiflash"] == FIGURES
    total = sum(chunks[1:], chunks[0])
    assert total.usage_metadata == {
        "input_tokens": 20,
        "output_tokens": 7,
        "total_tokens": 27,
        "input_token_details": {"cache_read": 16},
    }
    assert total.response_metadata["finish_reason"] == "stop"


def test_a_delta_of_reasoning_and_text_becomes_two_chunks() -> None:
    reader = StreamReader(TOOLS)
    delta = {
        "reasoning": "so.",
        "content": "Yes",
        "tool_calls": [{"index": 0, "id": "i", "function": {"name": "f"}}],
    }
    thought, text, made = reader.feed({"choices": [{"delta": delta}]})
    assert thought.additional_kwargs == {"reasoning_content": "so."} and thought.content == ""
    assert text.content == "Yes" and not text.additional_kwargs and not text.tool_call_chunks
    assert made.tool_call_chunks[0]["name"] == "f" and made.content == ""


def test_a_stream_that_breaks_off_is_an_error() -> None:
    broken = to_chunks(answer("half an ans"))[:1]
    model = ChatWhiFlash(backend=ScriptedBackend(broken))
    with pytest.raises(ModelConnectionError, match="finish_reason"):
        list(model.stream("x"))


MIXED = answer(
    "I look.",
    reasoning="Paris?",
    calls=[call("get_weather", '{"city": "Zürich 北京"}', "id-0"), call("now", "", "id-1")],
)


KINDS = ["reasoning", "text", "tool_call", "tool_call"]


@pytest.mark.parametrize("seed", [None, 1, 2])
def test_v1_streaming_keeps_text_and_calls_apart(seed: int | None) -> None:
    model = ChatWhiFlash(backend=ScriptedBackend(MIXED, seed=seed), output_version="v1")
    chunks = list(model.bind_tools([WEATHER]).stream("x"))
    total = sum(chunks[1:], chunks[0])
    assert [block["type"] for block in total.content_blocks] == KINDS
    whole = ChatWhiFlash(backend=ScriptedBackend(MIXED), output_version="v1").invoke("x")
    assert _without_index(total) == _without_index(whole)
    assert whole.content_blocks[1:] == [
        {"type": "text", "text": "I look."},
        {"type": "tool_call", "id": "id-0", "name": "get_weather", "args": {"city": "Zürich 北京"}},
        {"type": "tool_call", "id": "id-1", "name": "now", "args": {}},
    ]


def _without_index(message: AIMessage) -> list[dict[str, Any]]:
    return [{key: value for key, value in block.items() if key != "index"} for block in message.content_blocks]


@pytest.mark.parametrize("seed", [None, 1])
async def test_event_stream_has_one_block_of_each_kind(seed: int | None) -> None:
    model = ChatWhiFlash(backend=ScriptedBackend(MIXED, seed=seed))
    stream = await model.astream_events("x", version="v3")
    events = [event async for event in stream]
    finished = [event["content"] for event in events if event["event"] == "content-block-finish"]
    assert [block["type"] for block in finished] == KINDS
    assert finished[2]["args"] == {"city": "Zürich 北京"}


@pytest.mark.parametrize("args", ['{"city": "Par', '"Paris"', ""])
def test_event_stream_reports_a_broken_call(args: str) -> None:
    model = ChatWhiFlash(
        backend=ScriptedBackend(answer(calls=[call("get_weather", args)], finish_reason="length"), seed=1)
    )
    message = model.stream_events("x", version="v3").output
    assert message.tool_calls == []
    assert [bad["name"] for bad in message.invalid_tool_calls] == ["get_weather"]


def test_history_keeps_calls_thoughts_and_results() -> None:
    turn = read_completion(MIXED, TOOLS)
    history = to_openai([HumanMessage("q"), turn, ToolMessage("sunny", tool_call_id="id-0")])
    assert history[1] == {
        "role": "assistant",
        "content": "I look.",
        "reasoning": "Paris?",
        "tool_calls": [
            {
                "id": "id-0",
                "type": "function",
                "function": {"name": "get_weather", "arguments": '{"city": "Zürich 北京"}'},
            },
            {"id": "id-1", "type": "function", "function": {"name": "now", "arguments": "{}"}},
        ],
    }
    assert history[2] == {"role": "tool", "tool_call_id": "id-0", "content": "sunny"}


@pytest.mark.parametrize("seed", [None, 5])
def test_every_form_of_an_answer_goes_back_the_same(seed: int | None) -> None:
    """Else the prompt of the next turn differs from the cached one."""
    plain = read_completion(MIXED, TOOLS)
    for version in (None, "v1"):
        model = ChatWhiFlash(backend=ScriptedBackend(MIXED, seed=seed), output_version=version)
        chunks = list(model.stream("x"))
        total = sum(chunks[1:], chunks[0])
        assert to_openai([model.invoke("x")]) == to_openai([plain])
        assert to_openai([total]) == to_openai([message_chunk_to_message(total)]) == to_openai([plain])


def test_a_broken_call_goes_back_as_text() -> None:
    parsed = read_completion(answer("Hm.", calls=[call("get_weather", '{"city":')]), TOOLS)
    assert to_openai([parsed]) == [
        {"role": "assistant", "content": 'Hm.{"name": "get_weather", "arguments": {"city":'}
    ]
    in_text = read_completion(answer('Hm. <tool_call>{"name"', finish_reason="length"), TOOLS)
    assert to_openai([in_text]) == [{"role": "assistant", "content": 'Hm. <tool_call>{"name"'}]


def test_anthropic_blocks_are_converted() -> None:
    made = {"type": "tool_use", "id": "t1", "name": "color", "input": {"fav": "green"}}
    asked = AIMessage(
        [{"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "text", "text": "ok"}, made]
    )
    result = {
        "type": "tool_result",
        "tool_use_id": "t1",
        "content": [{"type": "text", "text": "nice"}],
        "is_error": True,
    }
    reply = HumanMessage([result, {"type": "text", "text": "and now?", "cache_control": {"type": "ephemeral"}}])
    assert to_openai([asked, reply]) == [
        {
            "role": "assistant",
            "content": "ok",
            "reasoning": "hm",
            "tool_calls": [
                {
                    "id": "t1",
                    "type": "function",
                    "function": {"name": "color", "arguments": '{"fav": "green"}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "t1", "content": "Error: nice"},
        {"role": "user", "content": "and now?"},
    ]


def test_a_call_told_twice_is_sent_once() -> None:
    made = {"type": "tool_use", "id": "t1", "name": "color", "input": {}}
    message = AIMessage([made], tool_calls=[{"name": "color", "args": {}, "id": "t1"}])
    assert len(to_openai([message])[0]["tool_calls"]) == 1


def test_failed_tool_says_so() -> None:
    assert (
        to_openai([ToolMessage("no such file", tool_call_id="1", status="error")])[0]["content"]
        == "Error: no such file"
    )


def test_repeated_roles_and_names_pass_through() -> None:
    wire = to_openai([SystemMessage("a"), SystemMessage("b"), HumanMessage("c", name="ann"), HumanMessage("d")])
    assert [message["role"] for message in wire] == ["system", "system", "user", "user"]
    assert wire[2]["name"] == "ann"


def test_a_call_whose_text_the_parser_dropped_is_reported() -> None:
    """The engine tells the generated text where the token limit cut an answer and a call was possible."""
    completion = answer("Sure.", finish_reason="length")
    completion["choices"][0]["whiflash_text"] = 'Sure.<tool_call>\n{"name": "get_we'
    chunks = to_chunks(completion)
    chunks[-2]["choices"][0]["whiflash_text"] = completion["choices"][0]["whiflash_text"]
    reader = StreamReader(TOOLS)
    first, *rest = [piece for chunk in chunks for piece in reader.feed(chunk)] + list(reader.finish())
    for message in (read_completion(completion, TOOLS), sum(rest, first)):
        assert (message.content, message.tool_calls) == ("Sure.", [])
        (bad,) = message.invalid_tool_calls
        assert bad["args"].startswith('<tool_call>\n{"name": "get_we')
    text_only = read_completion(completion, Expected())
    assert text_only.invalid_tool_calls == []


def test_a_second_call_that_is_cut_does_not_go_unseen() -> None:
    completion = answer(calls=[call("now", "{}")], finish_reason="length")
    chunks = to_chunks(completion)
    chunks[-2]["choices"][0]["whiflash_text"] = '<tool_call>{"name": "now"...}</tool_call><tool_call>{"na'
    reader = StreamReader(TOOLS)
    first, *rest = [piece for chunk in chunks for piece in reader.feed(chunk)] + list(reader.finish())
    message = sum(rest, first)
    assert [made["name"] for made in message.tool_calls] == ["now"]
    assert [bad["args"] for bad in message.invalid_tool_calls] == ['<tool_call>{"na']


def test_merged_roles() -> None:
    turn = AIMessage("b", tool_calls=[{"name": "now", "args": {}, "id": "1"}])
    wire = to_openai(
        [
            SystemMessage("s"),
            SystemMessage("t"),
            HumanMessage("q"),
            HumanMessage("r", name="ann"),
            AIMessage("a", additional_kwargs={"reasoning_content": "hm"}),
            turn,
            ToolMessage("x", tool_call_id="1"),
            ToolMessage("y", tool_call_id="2"),
            SystemMessage("late"),
            HumanMessage([{"type": "text", "text": "u"}, {"type": "text", "text": "v"}]),
        ],
        merge_roles=True,
    )
    assert [(message["role"], message["content"]) for message in wire] == [
        ("system", "s\n\nt"),
        ("user", "q"),
        ("user", "r"),
        ("assistant", "a\n\nb"),
        ("tool", "x"),
        ("tool", "y"),
        ("user", [{"type": "text", "text": part} for part in ("late", "u", "v")]),
    ]
    assert wire[3]["reasoning"] == "hm" and len(wire[3]["tool_calls"]) == 1
