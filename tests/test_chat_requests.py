"""What ChatWhiFlash asks of its backend, and what it makes of errors. No engine runs."""

from typing import Any, TypedDict

import pytest
from langchain_core.caches import InMemoryCache
from langchain_core.exceptions import (
    ContextOverflowError,
    ModelConnectionError,
    ModelInvalidRequestError,
    ModelNotFoundError,
    OutputParserException,
)
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from pydantic import BaseModel, ValidationError

from whiflash_agent import ChatWhiFlash
from whiflash_agent.testing import FIGURES, ScriptedBackend, answer, call
from whiflash_engine.errors import CheckpointError, ConfigError, ContextLengthError, EngineError, RequestError


def chat(*script: Any, **settings: Any) -> tuple[ChatWhiFlash, ScriptedBackend]:
    backend = ScriptedBackend(*script)
    return ChatWhiFlash(backend=backend, **settings), backend


class City(BaseModel):
    """A city."""

    name: str
    people: int | None = None


class CityDict(TypedDict):
    """A city."""

    name: str


@tool
def adder(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def doubler(a: int) -> int:
    """Double a number."""
    return 2 * a


OPENAI_DICT = {"type": "function", "function": {"name": "noop", "description": "", "parameters": {}}}
ANTHROPIC_DICT = {"name": "picker", "description": "p", "input_schema": {"type": "object", "properties": {}}}
ALL_FORMS = [City, CityDict, adder, doubler, OPENAI_DICT, ANTHROPIC_DICT, City.model_json_schema()]


def test_settings_and_call_arguments_make_the_request() -> None:
    model, backend = chat(temperature=0, max_tokens=9, top_p=0.5, seed=1, stop=["x"], router="dflash", trace=True)
    model.invoke("hi", stop=["y"], seed=2, top_k=5)
    assert backend.bodies == [
        {
            "messages": [{"role": "user", "content": "hi"}],
            "temperature": 0,
            "max_tokens": 9,
            "top_p": 0.5,
            "seed": 2,
            "stop": ["y"],
            "top_k": 5,
            "vllm_xargs": {"whiflash_router": "dflash"},
            "whiflash_trace": True,
        }
    ]


def test_nothing_is_sent_that_was_not_set() -> None:
    model, backend = chat()
    model.invoke("hi")
    assert backend.bodies == [{"messages": [{"role": "user", "content": "hi"}]}]


def test_router_of_a_call_wins_and_is_checked() -> None:
    model, backend = chat(router="eagle3")
    model.invoke("hi", router="off")
    assert backend.bodies[0]["vllm_xargs"] == {"whiflash_router": "off"}
    with pytest.raises(ConfigError, match="unknown router 'best'"):
        model.invoke("hi", router="best")


async def test_sync_async_and_streams_ask_and_answer_alike() -> None:
    model, backend = chat(answer("four ways", reasoning="r"))
    answers = [model.invoke("q"), await model.ainvoke("q")]
    answers += [
        sum(rest, first) for first, *rest in (list(model.stream("q")), [c async for c in model.astream("q")])
    ]
    assert {str(a.content) for a in answers} == {"four ways"}
    assert {a.additional_kwargs["reasoning_content"] for a in answers} == {"r"}
    assert all(a.response_metadata["whiflash"] == FIGURES and a.usage_metadata for a in answers)
    assert backend.bodies[0] == backend.bodies[1]
    assert (
        backend.bodies[2] == backend.bodies[3] == backend.bodies[0] | {"stream_options": {"include_usage": True}}
    )


async def test_leaving_a_stream_aborts_the_request() -> None:
    backend = ScriptedBackend(answer("a long answer"), seed=1)
    model = ChatWhiFlash(backend=backend)
    stream = model.stream("q")
    next(stream)
    stream.close()
    assert backend.aborted == 1
    astream = model.astream("q")
    await anext(astream)
    await astream.aclose()
    assert backend.aborted == 2


def test_logprobs_whole_and_streamed() -> None:
    logprobs = [{"token": "ok", "logprob": -0.5, "bytes": [111, 107], "top_logprobs": []}]
    model, backend = chat(answer("ok", logprobs=logprobs), logprobs=True, top_logprobs=2)
    total = model.invoke("q")
    first, *rest = model.stream("q")
    assert total.response_metadata["logprobs"] == {"content": logprobs}
    assert sum(rest, first).response_metadata["logprobs"] == {"content": logprobs}
    assert backend.bodies[0]["logprobs"] is True and backend.bodies[0]["top_logprobs"] == 2


@pytest.mark.parametrize("choice", ["any", "required", True])
def test_forced_choice_asks_for_one_call_that_follows_its_schema(choice: Any) -> None:
    model, backend = chat()
    model.bind_tools(ALL_FORMS, tool_choice=choice).invoke("q")
    (body,) = backend.bodies
    assert body["tool_choice"] == "required"
    assert body["parallel_tool_calls"] is False
    names = [made["function"]["name"] for made in body["tools"]]
    assert names == ["City", "CityDict", "adder", "doubler", "noop", "picker", "City"]
    assert all(made["function"]["strict"] is True for made in body["tools"])
    optional = body["tools"][0]["function"]["parameters"]
    assert optional["required"] == ["name"], "strict must not turn optional fields into required ones"


@pytest.mark.parametrize(
    "choice",
    ["adder", {"type": "function", "function": {"name": "adder"}}, {"type": "tool", "name": "adder"}],
)
def test_choice_of_one_tool(choice: Any) -> None:
    model, backend = chat()
    model.bind_tools([adder, doubler], tool_choice=choice, parallel_tool_calls=True, strict=False).invoke("q")
    (body,) = backend.bodies
    assert body["tool_choice"] == {"type": "function", "function": {"name": "adder"}}
    assert body["parallel_tool_calls"] is True
    assert body["tools"][0]["function"]["strict"] is False


@pytest.mark.parametrize("choice", [None, "auto", "none"])
def test_free_choice_leaves_the_tools_alone(choice: Any) -> None:
    model, backend = chat()
    model.bind_tools([adder], tool_choice=choice).invoke("q")
    (body,) = backend.bodies
    assert body.get("tool_choice") == choice
    assert "parallel_tool_calls" not in body and "strict" not in body["tools"][0]["function"]


def test_choice_of_an_unbound_tool_is_refused() -> None:
    with pytest.raises(ConfigError, match="'divider' names no bound tool: choose one of adder"):
        ChatWhiFlash().bind_tools([adder], tool_choice="divider")
    with pytest.raises(ConfigError, match="web_search"):
        ChatWhiFlash().bind_tools([{"type": "web_search"}])


@pytest.mark.parametrize("schema", [City, CityDict, City.model_json_schema()])
def test_structured_output_by_call(schema: Any) -> None:
    model, backend = chat(
        answer(calls=[call(schema["title"] if isinstance(schema, dict) else schema.__name__, '{"name": "Ulm"}')])
    )
    parsed = model.with_structured_output(schema).invoke("q")
    assert parsed == (City(name="Ulm") if schema is City else {"name": "Ulm"})
    assert backend.bodies[0]["tool_choice"]["type"] == "function"


@pytest.mark.parametrize("method", ["json_schema", "json_mode"])
@pytest.mark.parametrize("schema", [City, CityDict, City.model_json_schema()])
def test_structured_output_by_text(schema: Any, method: Any) -> None:
    model, backend = chat(answer('{"name": "Ulm"}'))
    parsed = model.with_structured_output(schema, method=method).invoke("q")
    assert parsed == (City(name="Ulm") if schema is City else {"name": "Ulm"})
    asked = backend.bodies[0]["response_format"]
    if method == "json_mode":
        assert asked == {"type": "json_object"}
    else:
        assert asked["json_schema"]["name"].startswith("City")
        assert asked["json_schema"]["schema"]["required"] == ["name"]


@pytest.mark.parametrize("method", ["function_calling", "json_schema", "json_mode"])
def test_cut_structured_output_is_an_error_not_a_smaller_object(method: Any) -> None:
    """``{"name": "Ul`` would be completed to a valid City."""
    cut = '{"name": "Ul'
    made = [call("City", cut)] if method == "function_calling" else []
    text = "" if made else cut
    model, _ = chat(answer(text, calls=made, finish_reason="length"))
    structured = model.with_structured_output(City, method=method)
    with pytest.raises(OutputParserException, match="cut off"):
        structured.invoke("q")
    raw = model.with_structured_output(City, method=method, include_raw=True).invoke("q")
    assert raw["parsed"] is None and isinstance(raw["parsing_error"], OutputParserException)
    assert raw["raw"].response_metadata["finish_reason"] == "length"


def test_structured_output_without_a_call_is_an_error() -> None:
    model, _ = chat(answer("I would rather not."))
    with pytest.raises(OutputParserException, match="no valid call"):
        model.with_structured_output(City).invoke("q")


def test_include_raw_of_a_good_answer() -> None:
    model, _ = chat(answer('{"name": "Ulm"}'))
    raw = model.with_structured_output(City, method="json_schema", include_raw=True).invoke("q")
    assert raw["parsed"] == City(name="Ulm") and raw["parsing_error"] is None


@pytest.mark.parametrize(
    ("raised", "seen"),
    [
        (ContextLengthError("prompt of 9000 tokens, window 8192"), ContextOverflowError),
        (RequestError("bad"), ModelInvalidRequestError),
        (RequestError("no such model", status=404), ModelNotFoundError),
        (EngineError("the engine died"), ModelConnectionError),
        (CheckpointError("missing"), CheckpointError),
        (ConfigError("no"), ConfigError),
    ],
)
def test_engine_errors_become_langchain_errors(
    raised: Exception, seen: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    import whiflash_agent._backends as backends

    scripted = ScriptedBackend(raised)
    embedded = backends.EmbeddedBackend(backends.EngineConfig())
    monkeypatch.setitem(embedded.__dict__, "_service", scripted)
    model = ChatWhiFlash(backend=embedded)
    with pytest.raises(seen) as whole:
        model.invoke("q")
    with pytest.raises(seen):
        list(model.stream("q"))
    assert str(raised) in str(whole.value)
    if seen is not type(raised):
        assert whole.value.__cause__ is raised
        assert whole.value.is_retryable is (seen is ModelConnectionError)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"router": "best"}, "unknown router 'best': choose one of"),
        ({"eagle3_tokens": 99}, "eagle3_tokens=99"),
        ({"max_model_len": 3}, "max_model_len=3"),
        ({"n": 0}, "n=0 is no number of answers"),
        ({"base_url": "http://x/v1", "dflash": "d"}, "dflash shape an embedded engine"),
    ],
)
def test_settings_that_cannot_work_are_refused_in_one_line(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as error:
        ChatWhiFlash(**settings)
    assert "\n" not in str(error.value)


def test_misspelt_settings_are_refused() -> None:
    with pytest.raises(ValidationError, match="routr"):
        ChatWhiFlash(routr="off")  # type: ignore[call-arg]


def test_several_answers_per_request() -> None:
    one, two = answer("one"), answer("two")
    both = one | {"choices": [one["choices"][0], two["choices"][0] | {"index": 1}]}
    both["whiflash"] = {"rounds": 5, "choices": [{"rounds": 2}, {"rounds": 3}]}
    model, backend = chat(both, n=2)
    (messages,) = [
        [made.message for made in made_for] for made_for in model.generate([[HumanMessage("q")]]).generations
    ]
    assert backend.bodies[0]["n"] == 2
    assert [message.content for message in messages] == ["one", "two"]
    assert [message.response_metadata["whiflash"]["rounds"] for message in messages] == [2, 3]
    assert [bool(message.usage_metadata) for message in messages] == [True, False], "the usage counts once"
    with pytest.raises(ConfigError, match="n=2 cannot be streamed"):
        list(model.stream("q"))
    assert next(chunk.content for chunk in model.stream("q", n=1)) == "one"


def test_a_stream_without_usage() -> None:
    model, _ = chat(stream_usage=False)
    assert all(chunk.usage_metadata is None for chunk in model.stream("q"))
    assert any(chunk.usage_metadata for chunk in model.stream("q", stream_usage=True))
    assert list(model.stream("q"))[-1].response_metadata["whiflash"] == FIGURES


def test_strict_templates_are_told_apart_from_other_bad_requests() -> None:
    from whiflash_agent.exceptions import from_status

    for words in (
        "Conversation roles must alternate user/assistant/user/assistant/...",
        "System role not supported",
        "System message must be at the beginning.",
    ):
        error = from_status(400, words)
        assert isinstance(error, ModelInvalidRequestError) and "merge_roles=True" in str(error)
    assert "merge_roles" not in str(from_status(400, "temperature must be non-negative"))
    model, backend = chat(merge_roles=True)
    model.invoke([HumanMessage("a"), HumanMessage("b")])
    assert backend.bodies[0]["messages"] == [{"role": "user", "content": "a\n\nb"}]


def test_an_engine_has_one_model() -> None:
    model, backend = chat(model="smollm2-135m")
    model.invoke("q", model="smollm2-135m")
    assert "model" not in backend.bodies[0]
    with pytest.raises(ModelNotFoundError, match="'gpt-9' does not run here"):
        model.invoke("q", model="gpt-9")


def test_names() -> None:
    model = ChatWhiFlash(model_name="smollm2-135m", temperature=0.5, stop=["a"])  # type: ignore[call-arg]
    assert model.model == model.model_name == "smollm2-135m"
    params = model._get_ls_params(model="other", temperature=0.1)
    assert (params["ls_provider"], params["ls_model_name"]) == ("whiflash", "other")
    assert (params["ls_temperature"], params["ls_stop"]) == (0.1, ["a"])


def test_profile_tells_the_window_before_the_engine_runs() -> None:
    assert (ChatWhiFlash().profile or {})["max_input_tokens"] == 8192
    assert (ChatWhiFlash(max_model_len=512).profile or {})["max_input_tokens"] == 512
    assert "max_input_tokens" not in (ChatWhiFlash(base_url="http://127.0.0.1:9/v1").profile or {})
    model, _ = chat()
    assert model.context_window() == 2048 == (model.profile or {})["max_input_tokens"]


@pytest.mark.parametrize(
    "change",
    [
        {"router": "off"},
        {"temperature": 0.3},
        {"stop": ["b"]},
        {"eagle3_tokens": 2},
        {"model_kwargs": {"top_k": 1}},
        {"output_version": "v1"},
        {"merge_roles": True},
    ],
)
def test_models_that_differ_do_not_share_cached_answers(change: dict[str, Any]) -> None:
    cache = InMemoryCache()
    first, backend = chat(answer("1"), cache=cache)
    assert first.invoke("q").content == first.invoke("q").content == "1"
    assert len(backend.bodies) == 1
    assert chat(answer("2"), cache=cache, **change)[0].invoke("q").text == "2"


def test_secrets_are_not_shown() -> None:
    model = ChatWhiFlash(api_key="hidden-key")  # type: ignore[arg-type]
    assert "hidden-key" not in repr(model) + str(model._identifying_params) + str(model._serialized)


def test_tokens_are_counted_with_tools_by_the_model_itself() -> None:
    model, backend = chat()
    assert model.get_num_tokens_from_messages([HumanMessage("one two")], tools=[adder]) == 3
    assert backend.bodies[0]["tools"][0]["function"]["name"] == "adder"
    assert model.get_num_tokens("three short words") == 3
    assert ChatWhiFlash(custom_get_token_ids=lambda text: [7]).get_token_ids("any text") == [7]


def test_close_releases_the_backend() -> None:
    with chat()[0] as model:
        model.invoke("q")
    assert model.backend is not None and model.backend.closed  # type: ignore[attr-defined]
