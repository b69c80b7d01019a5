"""OpenAI chat answers as LangChain messages: the way out, whole and streamed.

Both ways give the same message. What may appear once only (model name, finish reason, usage, WhiFlash's
figures) is put on the last chunk, since core adds chunks up: it joins strings, sums numbers, refuses floats.

An answer that is cut in the middle of a tool call must not pass for a call with fewer arguments (core
completes unfinished JSON) nor for an answer without a call. It becomes an ``invalid_tool_calls`` entry.
"""

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from langchain_core.exceptions import ModelConnectionError
from langchain_core.messages import AIMessage, AIMessageChunk, InvalidToolCall, ToolCall
from langchain_core.messages.ai import UsageMetadata
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.utils.json import parse_partial_json

from whiflash_agent.content_blocks import PROVIDER

_CUT_TEXT = "whiflash_text"
"""What the engine adds to a choice that the token limit cut where a call was possible: the text before parsing."""
CALL_OPENERS = ("<tool_call>", "<function=", "[TOOL_CALLS]", "<|python_tag|>")
"""How tool formats of the model families begin a call; left in the text only if the call did not parse."""
_CALL_NAME = re.compile(r'"name"\s*:\s*"([^"]+)"|<function=([^>\s]+)>')
# Each closes what the text before it may have left open, then a bracket that was never opened.
_BREAKERS = ("]", "}", '"]', '"}', '""]', '""}')


@dataclass(frozen=True)
class Expected:
    """What the request allowed the answer to be."""

    tools: bool = False
    forced: bool = False
    name: str | None = None
    """The function that had to be called, if one was named."""

    @classmethod
    def of(cls, body: dict[str, Any]) -> "Expected":
        """Read it from a request body."""
        choice = body.get("tool_choice")
        named = choice["function"]["name"] if isinstance(choice, dict) else None
        tools = bool(body.get("tools")) and choice != "none"
        return cls(tools, tools and (choice == "required" or named is not None), named)


def read_completions(completion: dict[str, Any], expected: Expected) -> list[AIMessage]:
    """Convert a ``chat.completion`` of ``n`` answers. The usage is the request's: it stands on the first."""
    figures = completion.get("whiflash") or {}
    messages = []
    for number, choice in enumerate(completion["choices"]):
        own = (figures.get("choices") or [figures])[number] if figures else None
        usage = completion.get("usage") if number == 0 else None
        one = {**completion, "choices": [choice], "usage": usage, "whiflash": own}
        messages.append(read_completion(one, expected))
    return messages


def read_completion(completion: dict[str, Any], expected: Expected) -> AIMessage:
    """Convert a ``chat.completion`` of one answer."""
    choice = completion["choices"][0]
    wire = choice["message"]
    finish_reason = choice.get("finish_reason")
    message = AIMessage(
        content=wire.get("content") or "",
        additional_kwargs=_reasoning(wire),
        usage_metadata=read_usage(completion.get("usage")),
        response_metadata=_metadata(completion, finish_reason) | _logprobs(choice),
    )
    for call in wire.get("tool_calls") or []:
        _add_call(message, call, finish_reason)
    if not message.tool_calls and not message.invalid_tool_calls:
        _report_unparsed(message, choice.get(_CUT_TEXT), expected, finish_reason)
    return message


def _report_unparsed(
    message: AIMessage, generated: str | None, expected: Expected, finish_reason: str | None
) -> None:
    """Move a call that did not parse from the text to ``invalid_tool_calls``."""
    text = str(message.content)
    message.invalid_tool_calls = _unparsed_calls(generated or text, expected, finish_reason)
    opener = _first_opener(text)
    if message.invalid_tool_calls and opener is not None:
        message.content = text[:opener]


def _add_call(message: AIMessage, call: dict[str, Any], finish_reason: str | None) -> None:
    function = call["function"]
    args = _closed(function.get("arguments") or "", finish_reason)
    parsed = _object(args)
    if parsed is not None:
        message.tool_calls.append(ToolCall(name=function["name"], args=parsed, id=call["id"], type="tool_call"))
    else:
        message.invalid_tool_calls.append(_invalid(function["name"], args, call["id"], finish_reason))


def _closed(args: str, finish_reason: str | None) -> str:
    """Return the arguments of a call that ended: a call without arguments has none to stream."""
    return "{}" if not args.strip() and finish_reason != "length" else args


def _object(args: str) -> dict[str, Any] | None:
    try:
        parsed = json.loads(args, strict=False)
    except json.JSONDecodeError:
        return None
    return parsed if isinstance(parsed, dict) else None


def _invalid(name: str | None, args: str, call_id: str | None, finish_reason: str | None) -> InvalidToolCall:
    error = "cut off by max_tokens or the context window" if finish_reason == "length" else "not a JSON object"
    return InvalidToolCall(name=name, args=args, id=call_id, error=error, type="invalid_tool_call")


def _unparsed_calls(text: str, expected: Expected, finish_reason: str | None) -> list[InvalidToolCall]:
    """Find a call that the engine's parser had to leave in the text."""
    start = _first_opener(text) if expected.tools else None
    if start is None and expected.forced:
        start = 0
    if start is None:
        return []
    return [_invalid(_call_name(text[start:], expected), text[start:], None, finish_reason)]


def _first_opener(text: str) -> int | None:
    return min((text.find(opener) for opener in CALL_OPENERS if opener in text), default=None)


def _last_call(text: str, calls: int) -> str:
    """Return the last call in ``text`` if it opens more than ``calls``. A format may nest two of the openers."""
    first = _first_opener(text)
    opener = next((opener for opener in CALL_OPENERS if first is not None and text.startswith(opener, first)), "")
    return text[text.rindex(opener) :] if opener and text.count(opener) > calls else ""


def _is_open(text: str) -> bool:
    """Whether the last call in ``text`` is unfinished; a forced call stands there without an opener."""
    call = (_last_call(text, 0) or text).removeprefix("[TOOL_CALLS]")
    if "<function=" in call:
        return "</function>" not in call
    start = min((call.find(bracket) for bracket in "{[" if bracket in call), default=len(call))
    try:
        json.JSONDecoder(strict=False).raw_decode(call, start)
    except json.JSONDecodeError:
        return True
    return False


def _call_name(text: str, expected: Expected) -> str | None:
    match = _CALL_NAME.search(text)
    return (match[1] or match[2]) if match else expected.name


def _reasoning(wire: dict[str, Any]) -> dict[str, Any]:
    """VLLM names the field ``reasoning``, its older versions and other servers ``reasoning_content``."""
    text = wire.get("reasoning") or wire.get("reasoning_content")
    return {"reasoning_content": text} if text else {}


def _logprobs(choice: dict[str, Any]) -> dict[str, Any]:
    content = (choice.get("logprobs") or {}).get("content")
    return {"logprobs": {"content": content}} if content else {}


def _metadata(source: dict[str, Any], finish_reason: str | None) -> dict[str, Any]:
    found = {
        "model_name": source.get("model"),
        "finish_reason": finish_reason,
        "whiflash": source.get("whiflash"),
    }
    return {"model_provider": PROVIDER} | {key: value for key, value in found.items() if value is not None}


def read_usage(usage: dict[str, Any] | None) -> UsageMetadata | None:
    """Convert token counts; ``cache_read`` and ``reasoning`` only where the server tells them."""
    if not usage:
        return None
    entry = UsageMetadata(
        input_tokens=usage["prompt_tokens"],
        output_tokens=usage.get("completion_tokens") or 0,
        total_tokens=usage["total_tokens"],
    )
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
    if cached is not None:
        entry["input_token_details"] = {"cache_read": cached}
    reasoning = (usage.get("completion_tokens_details") or {}).get("reasoning_tokens")
    if reasoning is not None:
        entry["output_token_details"] = {"reasoning": reasoning}
    return entry


@dataclass
class StreamReader:
    """Converts ``chat.completion.chunk`` dicts. A delta may hold any number of tokens, of any kinds."""

    expected: Expected
    with_usage: bool = True
    text: str = ""
    calls: dict[int, dict[str, Any]] = field(default_factory=dict)
    finish_reason: str | None = None
    generated: str | None = None
    """The text before parsing, if the answer was cut where a call was possible and the engine tells it."""
    once: dict[str, Any] = field(default_factory=dict)
    """The last ``model``, ``usage`` and ``whiflash`` seen."""

    def feed(self, chunk: dict[str, Any]) -> Iterator[AIMessageChunk]:
        """Yield one message chunk for each kind of content in the delta: core takes one kind per chunk."""
        self.once |= {key: chunk[key] for key in ("model", "usage", "whiflash") if chunk.get(key)}
        for choice in chunk.get("choices") or []:
            self.finish_reason = choice.get("finish_reason") or self.finish_reason
            self.generated = choice.get(_CUT_TEXT) or self.generated
            pieces = list(self._pieces(choice.get("delta") or {}))
            if logprobs := _logprobs(choice):
                pieces = pieces or [_chunk()]
                pieces[0].response_metadata |= logprobs
            yield from pieces

    def _pieces(self, delta: dict[str, Any]) -> Iterator[AIMessageChunk]:
        if reasoning := _reasoning(delta):
            yield _chunk(additional_kwargs=reasoning)
        if text := delta.get("content"):
            self.text += text
            yield _chunk(content=text)
        for call in delta.get("tool_calls") or []:
            yield self._call_piece(call)

    def _call_piece(self, call: dict[str, Any]) -> AIMessageChunk:
        index = call.get("index") or 0
        function = call.get("function") or {}
        name, call_id, args = function.get("name"), call.get("id"), function.get("arguments") or ""
        seen = self.calls.setdefault(index, {"name": None, "id": None, "args": ""})
        seen["args"] += args
        # Name and id of a call are told once, however often the server repeats them.
        name, seen["name"] = (None, seen["name"]) if seen["name"] else (name, name)
        call_id, seen["id"] = (None, seen["id"]) if seen["id"] else (call_id, call_id)
        return _call_chunk(index, args, name, call_id)

    def finish(self) -> Iterator[AIMessageChunk]:
        """Yield what ends the calls, then the last chunk."""
        if self.finish_reason is None:
            raise ModelConnectionError("the answer ended without a finish_reason: the engine or server went away")
        for index, call in self.calls.items():
            is_cut = index == max(self.calls) and self._ends_in_a_call()
            if ending := _breaker(call["args"]) if is_cut else self._ending(call["args"]):
                yield _call_chunk(index, ending)
        for bad in self._unparsed():
            args = bad["args"] or ""
            yield _call_chunk(max(self.calls, default=-1) + 1, args + _breaker(args), bad["name"])
        yield _chunk(
            chunk_position="last",
            usage_metadata=read_usage(self.once.get("usage")) if self.with_usage else None,
            response_metadata=_metadata(self.once, self.finish_reason),
        )

    def _unparsed(self) -> list[InvalidToolCall]:
        """Return the call that was cut before the engine's parser could tell its name."""
        text = self.generated or self.text
        if self.calls:
            text = _last_call(text, len(self.calls))
            return _unparsed_calls(text, self.expected, self.finish_reason) if text else []
        return _unparsed_calls(text, self.expected, self.finish_reason)

    def _ends_in_a_call(self) -> bool:
        """Whether the last of ``calls`` is unfinished. The engine's parser may have closed it all the same."""
        text = self.generated
        if self.finish_reason != "length" or not text or _last_call(text, len(self.calls)):
            return False
        return _is_open(text)

    def _ending(self, args: str) -> str:
        closed = _closed(args, self.finish_reason)
        if _object(closed) is None:
            return _breaker(args)
        return "" if closed == args else closed


def _chunk(**fields: Any) -> AIMessageChunk:
    fields = {"content": "", "response_metadata": {"model_provider": PROVIDER}} | fields
    return AIMessageChunk(**fields)


def _call_chunk(index: int, args: str, name: str | None = None, call_id: str | None = None) -> AIMessageChunk:
    return _chunk(tool_call_chunks=[tool_call_chunk(name=name, args=args, id=call_id, index=index)])


def _breaker(args: str) -> str:
    """Return what to append so that core does not complete the arguments to a call that was never made."""
    candidates = ("", *_BREAKERS) if args else _BREAKERS
    return next(breaker for breaker in candidates if not _passes_for_arguments(args + breaker))


def _passes_for_arguments(args: str) -> bool:
    """Core's chunks complete unfinished JSON to an object; its event stream takes any JSON value."""
    with suppress(json.JSONDecodeError):
        json.loads(args)
        return True
    with suppress(json.JSONDecodeError):
        return isinstance(parse_partial_json(args), dict)
    return False
