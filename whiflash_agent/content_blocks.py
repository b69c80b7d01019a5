"""Standard content blocks of our messages, for ``output_version="v1"`` and the event stream.

langchain-core numbers blocks that carry no index of their own by their position, and tool calls already carry
the integers 0, 1, ...: the first call would be merged into the text before it. So every block of a chunk gets
a string index of its own kind (``lc_`` is core's prefix for indexes that may be merged).
"""

from typing import cast

from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.messages import content as types
from langchain_core.messages.block_translators import register_translator

PROVIDER = "whiflash"
"""``response_metadata["model_provider"]`` of every message; the key under which the translators are found."""


def translate_content(message: AIMessage) -> list[types.ContentBlock]:
    """Return reasoning, text and tool calls of a whole message, in that order."""
    blocks = [*_reasoning(message), *_text(message)]
    for call in message.tool_calls:
        blocks.append(types.ToolCall(type="tool_call", id=call["id"], name=call["name"], args=call["args"]))
    for bad in message.invalid_tool_calls:
        blocks.append(cast("types.InvalidToolCall", {**bad, "type": "invalid_tool_call"}))
    return blocks


def translate_content_chunk(message: AIMessageChunk) -> list[types.ContentBlock]:
    """Return the blocks of one chunk; an aggregate of the whole stream shows whole tool calls.

    Our last chunk never carries a piece of a call, so a last chunk with calls is an aggregate.
    """
    if message.chunk_position == "last" and message.tool_call_chunks:
        return translate_content(message)
    blocks = [*_reasoning(message, index="lc_rs_0"), *_text(message, index="lc_txt_0")]
    for chunk in message.tool_call_chunks:
        blocks.append(
            types.ToolCallChunk(
                type="tool_call_chunk",
                id=chunk.get("id"),
                name=chunk.get("name"),
                args=chunk.get("args"),
                index=f"lc_tc_{chunk.get('index') or 0}",
            )
        )
    return blocks


def _reasoning(message: AIMessage, **index: str) -> list[types.ContentBlock]:
    reasoning = message.additional_kwargs.get("reasoning_content")
    if not isinstance(reasoning, str) or not reasoning:
        return []
    return [cast("types.ReasoningContentBlock", {"type": "reasoning", "reasoning": reasoning, **index})]


def _text(message: AIMessage, **index: str) -> list[types.ContentBlock]:
    if not isinstance(message.content, str) or not message.content:
        return []
    return [cast("types.TextContentBlock", {"type": "text", "text": message.content, **index})]


register_translator(PROVIDER, translate_content, translate_content_chunk)
