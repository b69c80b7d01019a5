"""A chat model that gives set replies: the test double for all that lies above the model."""

from collections.abc import Sequence
from typing import Any

from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolCall
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable
from pydantic import Field


class ScriptedChatModel(BaseChatModel):
    """Gives ``replies`` in turn; an exception among them is raised, a callable is called first.

    ``seen`` keeps the messages of every call. After the last reply the last one repeats.
    """

    replies: list[Any]
    seen: list[list[BaseMessage]] = Field(default_factory=list)
    bound: dict[str, Any] = Field(default_factory=dict)

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Runnable[Any, AIMessage]:
        """Note what was bound; replies do not depend on it."""
        self.bound.update(kwargs, tools=list(tools))
        return self

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        self.seen.append(list(messages))
        reply = self.replies[min(len(self.seen), len(self.replies)) - 1]
        if callable(reply):
            reply = reply()
        if isinstance(reply, BaseException):
            raise reply
        return ChatResult(generations=[ChatGeneration(message=reply)])


def calling(
    name: str, call_id: str = "call-1", *, whiflash: dict[str, Any] | None = None, **arguments: Any
) -> AIMessage:
    """Return a reply that calls one tool, with the usage of a small turn."""
    return reply("", calls=[ToolCall(name=name, args=arguments, id=call_id)], whiflash=whiflash)


def reply(
    text: str,
    *,
    calls: Sequence[ToolCall] = (),
    invalid: Sequence[Any] = (),
    finish_reason: str | None = None,
    whiflash: dict[str, Any] | None = None,
) -> AIMessage:
    """Return a reply; 100 tokens in, 60 of them cached, 20 out."""
    return AIMessage(
        content=text,
        tool_calls=list(calls),
        invalid_tool_calls=list(invalid),
        response_metadata={
            "finish_reason": finish_reason or ("tool_calls" if calls else "stop"),
            "whiflash": whiflash or {},
        },
        usage_metadata={
            "input_tokens": 100,
            "output_tokens": 20,
            "total_tokens": 120,
            "input_token_details": {"cache_read": 60},
        },
    )
