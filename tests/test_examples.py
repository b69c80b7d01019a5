"""The examples run."""

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from langchain_core.messages import AIMessage, ToolMessage

EXAMPLES = Path(__file__).parents[1] / "examples"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.engine
def test_the_agent_calls_a_tool_and_answers(chat_model: Any) -> None:
    model = chat_model.model_copy(update={"max_tokens": 96})
    messages = load("agent").run(model, "Which files are in the folder '.'?", turns=1)
    kinds = [type(message) for message in messages]
    assert kinds[1] is AIMessage and kinds[-1] is AIMessage
    called = messages[1]
    assert called.tool_calls or called.response_metadata["finish_reason"] == "length"
    assert not called.tool_calls or ToolMessage in kinds
    assert messages[-1].content
