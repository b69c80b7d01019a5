"""The loop itself. ``Agent.run`` reads top to bottom as one task's life."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, TypeVar

from langchain_core.exceptions import ContextOverflowError
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    SystemMessage,
    ToolCall,
    ToolMessage,
)
from langchain_core.runnables import Runnable

from whiflash_engine.errors import CheckpointError, ConfigError, ContextLengthError
from whiflash_harnesses.environments import Environment
from whiflash_harnesses.loop.budget import count_tokens, window_of
from whiflash_harnesses.loop.config import AgentConfig, ExitStatus
from whiflash_harnesses.loop.prompts import prompt
from whiflash_harnesses.loop.tools import Toolbox

T = TypeVar("T")


@dataclass(slots=True)
class Turn:
    """One model call and the tool calls it led to."""

    number: int
    generation_s: float
    finish_reason: str | None
    usage: dict[str, Any]
    """LangChain's usage metadata of the reply."""
    whiflash: dict[str, Any]
    """``response_metadata["whiflash"]``: rounds, per drafter, per segment; empty for other models."""
    tool_s: float = 0.0
    malformed: int = 0
    calls: list[str] = field(default_factory=list)
    """Each tool call as one line of text, for people to follow."""


@dataclass(slots=True)
class Outcome:
    """How a task ended."""

    exit_status: ExitStatus
    detail: str
    """What the status does not say by itself: the error's text, the number that was exceeded."""


class _End(Exception):
    """The loop's way out, not a fault."""

    def __init__(self, status: ExitStatus, detail: str = "") -> None:
        super().__init__(status)
        self.outcome = Outcome(status, detail)


class Agent:
    """Works on one task. ``messages`` and ``turns`` grow while it runs; ``on_turn`` is told of each turn.

    ``should_stop`` is asked before each turn; it ends the task as ``interrupted``.
    """

    def __init__(
        self,
        model: BaseChatModel,
        environment: Environment,
        config: AgentConfig,
        *,
        on_turn: Callable[[Turn], None] = lambda turn: None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self.config = config
        self.messages: list[BaseMessage] = []
        self.turns: list[Turn] = []
        self._model = model
        self._toolbox = Toolbox(environment, config.observation_bytes)
        self._bound: Runnable[Any, Any] = model.bind_tools(self._toolbox.tools, tool_choice=config.tool_choice)
        self._window = config.context_window
        self._workdir = environment.workdir
        self._on_turn = on_turn
        self._should_stop = should_stop
        self._began = 0.0
        self._last_call = ""

    def run(self, issue: str) -> Outcome:
        """Work on ``issue`` until submission or a limit. Settings that cannot work are raised."""
        self.messages += [
            SystemMessage(prompt("system", workdir=self._workdir)),
            HumanMessage(prompt("task", issue=issue)),
        ]
        try:
            window = self._ask(lambda: window_of(self._model))
            self._window = self._window or window
            self._began = perf_counter()  # not before: the question may have started an engine
            self._begin()
            while True:
                self._check_limits()
                self._check_context()
                self._step()
        except _End as end:
            return end.outcome

    def _begin(self) -> None:
        """Run the configured first commands as if the model had asked for them."""
        for number, command in enumerate(self.config.first_commands):
            call = ToolCall(name="bash", args={"command": command}, id=f"given_{number}", type="tool_call")
            self.messages.append(AIMessage("", tool_calls=[call], additional_kwargs={"given": True}))
            self._toolbox.seconds_left = self.config.command_timeout
            self._say(self._toolbox.call("bash", call["args"]).text, call["id"])

    def turn_of(self, message: BaseMessage) -> Turn | None:
        """Return the turn that produced an assistant message."""
        replies = [m for m in self.messages if isinstance(m, AIMessage) and not _is_given(m)]
        return next((t for m, t in zip(replies, self.turns, strict=False) if m is message), None)

    def _check_limits(self) -> None:
        config = self.config
        if self._should_stop():
            raise _End("interrupted")
        if len(self.turns) >= config.steps:
            raise _End("step_limit", f"{config.steps} steps")
        if self._generated() >= config.max_tokens:
            raise _End("token_limit", f"{self._generated()} of {config.max_tokens} tokens")
        if self._seconds_left() <= 0:
            raise _End("wall_clock_limit", f"{config.wall_clock:g} seconds")

    def _check_context(self) -> None:
        """End before a call that would not fit: nothing is cut from the history."""
        config = self.config
        needed = self._ask(lambda: count_tokens(self._model, self.messages, self._toolbox.tools))
        if self._window and needed and needed + config.turn_tokens > self._window:
            raise _End(
                "context_exceeded",
                f"prompt of {needed} tokens and reply of {config.turn_tokens} exceed {self._window}",
            )

    def _generated(self) -> int:
        return sum(turn.usage.get("output_tokens", 0) for turn in self.turns)

    def _seconds_left(self) -> float:
        return self.config.wall_clock - (perf_counter() - self._began)

    def _step(self) -> None:
        began = perf_counter()
        reply = self._ask(lambda: self._bound.invoke(self.messages))
        if not isinstance(reply, AIMessage):
            raise TypeError(f"the model returned {type(reply).__name__}, not an AIMessage")
        turn = _turn_of_reply(len(self.turns) + 1, perf_counter() - began, reply)
        self.messages.append(reply)
        self.turns.append(turn)
        began = perf_counter()
        submitted = self._answer(reply, turn)
        turn.tool_s = perf_counter() - began
        self._on_turn(turn)
        if submitted:
            raise _End("submitted")

    def _ask(self, question: Callable[[], T]) -> T:
        """Ask the model something; its failure is one of the ways in which a task can end."""
        try:
            return question()
        except (ContextOverflowError, ContextLengthError) as error:
            raise _End("context_exceeded", str(error)) from error
        except (ConfigError, CheckpointError):
            raise  # the next task would meet the same: the run ends and says so
        except Exception as error:
            # An interrupt from the terminal reaches the engine's process too and may end its request.
            status: ExitStatus = "interrupted" if self._should_stop() else "model_error"
            raise _End(status, f"{type(error).__name__}: {error}") from error

    def _answer(self, reply: AIMessage, turn: Turn) -> bool:
        """Carry out the reply's calls and append their answers; True once the work is handed in."""
        for bad in reply.invalid_tool_calls:
            turn.malformed += 1
            turn.calls.append(f"(invalid) {bad.get('name')} {bad.get('args')}")
            problem = bad.get("error") or "not a JSON object"
            text = prompt("bad_arguments", name=bad.get("name") or "the call", problem=problem)
            self._say(text if turn.finish_reason != "length" else self._cut_text(), bad.get("id"))
        for call in reply.tool_calls:
            if self._carry_out(call["name"], call["args"], call["id"], turn):
                return True
        if not turn.calls:
            turn.malformed += 1
            text = self._cut_text() if turn.finish_reason == "length" else prompt("no_call")
            self.messages.append(HumanMessage(text))
        return False

    def _carry_out(self, name: str, arguments: dict[str, Any], call_id: str | None, turn: Turn) -> bool:
        line = f"{name} {json.dumps(arguments, ensure_ascii=False)}"
        turn.calls.append(line)
        self._toolbox.seconds_left = max(1.0, min(self.config.command_timeout, self._seconds_left()))
        answer = self._toolbox.call(name, arguments)
        turn.malformed += answer.malformed
        repeated = line == self._last_call and not answer.submit
        self._last_call = line
        self._say(f"{answer.text}\n{prompt('repeated')}" if repeated else answer.text, call_id)
        return answer.submit

    def _say(self, text: str, call_id: str | None) -> None:
        self.messages.append(ToolMessage(text, tool_call_id=call_id or f"call_{len(self.messages)}"))

    def _cut_text(self) -> str:
        return prompt("cut", limit=self.config.turn_tokens)


def _is_given(message: AIMessage) -> bool:
    return bool(message.additional_kwargs.get("given"))


def _turn_of_reply(number: int, seconds: float, reply: AIMessage) -> Turn:
    metadata = reply.response_metadata
    return Turn(
        number=number,
        generation_s=seconds,
        finish_reason=metadata.get("finish_reason"),
        usage=dict(reply.usage_metadata or {}),
        whiflash=dict(metadata.get("whiflash") or {}),
    )
