"""Tools and tool choice in the forms LangChain users write them, as OpenAI's."""

from collections.abc import Callable, Sequence
from typing import Any

from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool

from whiflash_engine.errors import ConfigError

ToolLike = dict[str, Any] | type | Callable[..., Any] | BaseTool
ToolChoice = str | bool | dict[str, Any] | None

_WORDS: dict[Any, str] = {
    "auto": "auto",
    "none": "none",
    "any": "required",
    "required": "required",
    True: "required",
    False: "none",
}


def format_tools(tools: Sequence[ToolLike], strict: bool | None = None) -> list[dict[str, Any]]:
    """Convert pydantic and TypedDict classes, functions, tools, JSON schemas, OpenAI and Anthropic dicts."""
    formatted = [convert_to_openai_tool(tool, strict=strict) for tool in tools]
    for tool in formatted:
        if tool.get("type") != "function":
            raise ConfigError(f"tool of type {tool.get('type')!r} is not supported: pass a function tool")
    return formatted


def format_tool_choice(choice: ToolChoice, tools: Sequence[dict[str, Any]]) -> str | dict[str, Any] | None:
    """Return OpenAI's ``tool_choice``; a name must be that of one of ``tools``."""
    if choice is None:
        return None
    if isinstance(choice, dict):
        kind = choice.get("type")
        if kind not in ("function", "tool"):  # Anthropic's {"type": "any"}
            return format_tool_choice(kind, tools)
        choice = choice["function"]["name"] if kind == "function" else choice["name"]
    elif choice in _WORDS:
        return _WORDS[choice]
    names = [tool["function"]["name"] for tool in tools]
    if choice not in names:
        raise ConfigError(f"tool_choice {choice!r} names no bound tool: choose one of {', '.join(names)}")
    return {"type": "function", "function": {"name": choice}}


def tool_arguments(
    tools: Sequence[ToolLike], choice: ToolChoice, *, strict: bool | None, parallel: bool | None
) -> dict[str, Any]:
    """Return the request fields for bound tools.

    A forced call is held to its schema and to one call unless the caller says otherwise: without that the
    grammar leaves the arguments free, and models repeat a required call until the token limit.
    """
    formatted = format_tools(tools, strict)
    fields: dict[str, Any] = {"tools": formatted}
    if (formatted_choice := format_tool_choice(choice, formatted)) is not None:
        fields["tool_choice"] = formatted_choice
    if formatted_choice not in (None, "auto", "none"):
        parallel = bool(parallel)
        if strict is None:
            for tool in formatted:
                tool["function"]["strict"] = True
    if parallel is not None:
        fields["parallel_tool_calls"] = parallel
    return fields
