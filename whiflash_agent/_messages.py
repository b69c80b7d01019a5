"""LangChain messages as OpenAI chat messages: the way in.

Every tool call, result and thought of the history must reach the template in the same form each turn: a
prompt whose older part changes loses the prefix cache. Accepted besides LangChain's own forms are Anthropic's
``tool_use``, ``tool_result`` and ``thinking`` blocks, and the standard (v1) content blocks.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from langchain_core.exceptions import ModelInvalidRequestError
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    ChatMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
    convert_to_openai_data_block,
    is_data_content_block,
)

from whiflash_agent._answers import CALL_OPENERS

_CALL_BLOCKS = {"tool_use", "tool_call"}
_DROPPED_BLOCKS = {
    "redacted_thinking",
    "tool_call_chunk",
    "input_json_delta",
    "invalid_tool_call",
    "reasoning",
    "thinking",
    *_CALL_BLOCKS,
}
"""Blocks of an AI message that travel in fields of their own, or not at all."""


def to_openai(messages: Sequence[BaseMessage], *, merge_roles: bool = False) -> list[dict[str, Any]]:
    """Convert a conversation. Repeated roles and late system messages go to the chat template as they are.

    ``merge_roles`` makes one message of neighbours of one role, and of a system message after the first others
    a user's words in the place where it stands: for templates that refuse anything but turns.
    """
    wires = [wire for message in messages for wire in _convert(message)]
    return _merged(wires) if merge_roles else wires


def _merged(wires: list[dict[str, Any]]) -> list[dict[str, Any]]:
    merged: list[dict[str, Any]] = []
    for wire in wires:
        # Not moved to the front: what a prompt begins with must stay, or nothing of it is found in the cache.
        late = wire["role"] == "system" and any(earlier["role"] != "system" for earlier in merged)
        message = {**wire, "role": "user"} if late else wire
        if merged and _same_speaker(merged[-1], message):
            merged[-1] = _joined(merged[-1], message)
        else:
            merged.append(message)
    return merged


def _same_speaker(first: dict[str, Any], second: dict[str, Any]) -> bool:
    """Tool results answer one call each; an assistant's calls must be followed by their results."""
    same = all(first.get(key) == second.get(key) for key in ("role", "name"))
    return same and first["role"] != "tool" and "tool_calls" not in first


def _joined(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    contents = [message["content"] for message in (first, second)]
    if all(isinstance(content, str) for content in contents):
        joined: Any = "\n\n".join(content for content in contents if content)
    else:
        parts = [[_text_part(content)] if isinstance(content, str) else content for content in contents]
        joined = [*parts[0], *parts[1]]
    thoughts = "\n\n".join(message["reasoning"] for message in (first, second) if message.get("reasoning"))
    return {**first, **second, "content": joined, **({"reasoning": thoughts} if thoughts else {})}


def _convert(message: BaseMessage) -> Iterator[dict[str, Any]]:
    if isinstance(message, AIMessage):
        yield _assistant(message)
    elif isinstance(message, ToolMessage):
        yield _tool_result(message.tool_call_id, message.content, failed=message.status == "error")
    elif isinstance(message, HumanMessage):
        yield from _human(message)
    elif isinstance(message, SystemMessage):
        yield _named({"role": "system", "content": _parts(message.content)}, message)
    elif isinstance(message, ChatMessage):
        yield _named({"role": message.role, "content": _parts(message.content)}, message)
    else:
        raise ModelInvalidRequestError(f"{type(message).__name__} cannot be sent to a chat model")


def _named(wire: dict[str, Any], message: BaseMessage) -> dict[str, Any]:
    return {**wire, "name": message.name} if message.name else wire


def _human(message: HumanMessage) -> Iterator[dict[str, Any]]:
    """Yield Anthropic-style tool results as tool messages, then what else the human said."""
    blocks = message.content if isinstance(message.content, list) else [message.content]
    rest: list[str | dict[str, Any]] = []
    for block in blocks:
        if isinstance(block, dict) and block.get("type") == "tool_result":
            failed = bool(block.get("is_error"))
            yield _tool_result(str(block.get("tool_use_id")), block.get("content") or "", failed=failed)
        else:
            rest.append(block)
    if rest or not blocks:
        yield _named({"role": "user", "content": _parts(rest)}, message)


def _tool_result(call_id: str, content: Any, *, failed: bool) -> dict[str, Any]:
    """The wire form has no error flag, so a failed result says so in words."""
    parts = _parts(content)
    if failed:
        parts = f"Error: {parts}" if isinstance(parts, str) else [_text_part("Error:"), *parts]
    return {"role": "tool", "tool_call_id": call_id, "content": parts}


def _parts(content: Any) -> str | list[dict[str, Any]]:
    """Return plain text if that is all there is, else a list of OpenAI content parts."""
    if isinstance(content, str):
        return content
    parts = [_part(block) for block in content]
    if all(part["type"] == "text" for part in parts) and len(parts) <= 1:
        return parts[0]["text"] if parts else ""
    return parts


def _part(block: str | dict[str, Any]) -> dict[str, Any]:
    if isinstance(block, str):
        return _text_part(block)
    kind = block.get("type")
    if kind == "text":
        return _text_part(block["text"])
    if kind in {"image_url", "input_audio", "video_url", "audio_url", "file"} and kind in block:
        return {"type": kind, kind: block[kind]}
    if is_data_content_block(block):
        return convert_to_openai_data_block(block)
    raise ModelInvalidRequestError(f"content block of type {kind!r} cannot be sent: use text blocks")


def _text_part(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _assistant(message: AIMessage) -> dict[str, Any]:
    blocks: list[Any] = message.content if isinstance(message.content, list) else [message.content]
    text = "".join(_assistant_text(block) for block in blocks)
    text += "".join(_unsent_call(call, text) for call in message.invalid_tool_calls)
    wire = _named({"role": "assistant", "content": text}, message)
    if reasoning := _reasoning(message, blocks):
        wire["reasoning"] = reasoning
    if calls := _calls(message, blocks):
        wire["tool_calls"] = calls
    return wire


def _assistant_text(block: str | dict[str, Any]) -> str:
    if isinstance(block, str):
        return block
    kind = block.get("type")
    if kind == "text":
        return str(block["text"])
    if kind in _DROPPED_BLOCKS:
        return ""
    raise ModelInvalidRequestError(f"content block of type {kind!r} in an AI message cannot be sent")


def _unsent_call(call: Any, text: str) -> str:
    """Show the model a call of its own that was no valid call: as text, since its arguments do not parse."""
    args = call.get("args") or ""
    if args and args in text:
        return ""
    if args.startswith(CALL_OPENERS):  # the call as it was written, in the model's own form
        return str(args)
    return f'{{"name": {json.dumps(call.get("name"))}, "arguments": {args}'


def _reasoning(message: AIMessage, blocks: list[Any]) -> str:
    kept = message.additional_kwargs.get("reasoning_content")
    if isinstance(kept, str) and kept:
        return kept
    thoughts = (block for block in blocks if isinstance(block, dict))
    return "".join(str(block.get("reasoning") or block.get("thinking") or "") for block in thoughts)


def _calls(message: AIMessage, blocks: list[Any]) -> list[dict[str, Any]]:
    calls = [_call(call["id"], call["name"], call["args"]) for call in message.tool_calls]
    known = {call["id"] for call in calls}
    for block in blocks:
        if isinstance(block, dict) and block.get("type") in _CALL_BLOCKS and block.get("id") not in known:
            calls.append(_call(block.get("id"), block["name"], block.get("input") or block.get("args") or {}))
    return calls


def _call(call_id: str | None, name: str, args: Any) -> dict[str, Any]:
    arguments = json.dumps(args, ensure_ascii=False)
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
