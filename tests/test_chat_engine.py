"""ChatWhiFlash on the real embedded engine: what does not depend on how clever the small model is."""

import pytest
from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import HumanMessage
from pydantic import BaseModel

from whiflash_agent import ChatWhiFlash

pytestmark = pytest.mark.engine
QUESTION = "Name three colours and say where each is found."


class City(BaseModel):
    """A city and its country."""

    name: str
    country: str


def test_every_router_gives_the_text_of_off(chat_model: ChatWhiFlash) -> None:
    settings = {"temperature": 0, "max_tokens": 48}
    plain = chat_model.invoke(QUESTION, router="off", **settings)
    assert plain.content
    for router in ("eagle3", "dflash", "entropy"):
        drafted = chat_model.invoke(QUESTION, router=router, **settings)
        assert drafted.content == plain.content
        assert drafted.response_metadata["whiflash"]["drafted"] > 0
    assert plain.response_metadata["whiflash"]["drafted"] == 0


async def test_sync_async_and_streams_agree(chat_model: ChatWhiFlash) -> None:
    settings = {"temperature": 0, "max_tokens": 24, "ignore_eos": True}
    whole = chat_model.invoke(QUESTION, **settings)
    first, *rest = [chunk async for chunk in chat_model.astream(QUESTION, **settings)]
    head, *tail = chat_model.stream(QUESTION, **settings)
    for other in (await chat_model.ainvoke(QUESTION, **settings), sum(rest, first), sum(tail, head)):
        assert other.content == whole.content
        assert other.usage_metadata and whole.usage_metadata
        assert other.usage_metadata["output_tokens"] == whole.usage_metadata["output_tokens"] == 24
        assert other.response_metadata["finish_reason"] == "length"
        assert other.response_metadata["whiflash"]["rounds"] > 0


def test_figures_add_up_with_the_trace(chat_model: ChatWhiFlash) -> None:
    message = chat_model.invoke(QUESTION, temperature=0, max_tokens=32, trace=True)
    figures = message.response_metadata["whiflash"]
    rounds = figures["trace"]
    assert len(rounds) == figures["rounds"]
    assert sum(r["accepted"] for r in rounds) == figures["accepted"] <= figures["drafted"]
    assert sum(share for share in figures["share_by_drafter"].values()) == pytest.approx(1)


@pytest.mark.parametrize("router", ["off", "entropy"])
def test_forced_call_follows_its_schema(chat_model: ChatWhiFlash, router: str) -> None:
    model = chat_model.bind_tools([City], tool_choice="any")
    message = model.invoke("Where is the Eiffel tower?", router=router, temperature=0, max_tokens=200)
    if message.response_metadata["finish_reason"] == "length":
        assert message.invalid_tool_calls, "a call that was cut must be reported as such"
    else:
        (made,) = message.tool_calls
        City.model_validate(made["args"])


def test_structured_output_by_grammar(chat_model: ChatWhiFlash) -> None:
    model = chat_model.with_structured_output(City, method="json_schema", include_raw=True)
    answer = model.invoke("Where is the Eiffel tower?", temperature=0, max_tokens=200)
    cut = answer["raw"].response_metadata["finish_reason"] == "length"
    assert isinstance(answer["parsed"], City) or (cut and answer["parsing_error"])


def test_a_forced_call_that_is_cut_is_reported(chat_model: ChatWhiFlash) -> None:
    model = chat_model.bind_tools([City], tool_choice="any")
    first, *rest = model.stream("Where is the Eiffel tower?", max_tokens=4)
    for message in (model.invoke("Where is the Eiffel tower?", max_tokens=4), sum(rest, first)):
        assert message.response_metadata["finish_reason"] == "length"
        assert message.tool_calls == [] and message.invalid_tool_calls


def test_tokens_are_counted_as_the_engine_counts_them(chat_model: ChatWhiFlash) -> None:
    counted = chat_model.get_num_tokens_from_messages([HumanMessage(QUESTION)], tools=[City])
    message = chat_model.bind_tools([City]).invoke(QUESTION, max_tokens=1)
    assert message.usage_metadata and message.usage_metadata["input_tokens"] == counted


def test_a_prompt_beyond_the_window_is_an_error(chat_model: ChatWhiFlash) -> None:
    with pytest.raises(ContextOverflowError):
        chat_model.invoke("word " * (2 * chat_model.context_window()), max_tokens=1)


def test_a_stop_sequence_ends_the_answer(chat_model: ChatWhiFlash) -> None:
    plain = str(chat_model.invoke(QUESTION, temperature=0, max_tokens=24).content)
    stop = plain[len(plain) // 2 :][:3]
    stopped = chat_model.invoke(QUESTION, stop=[stop], temperature=0, max_tokens=24)
    assert stopped.content == plain[: plain.index(stop)]
