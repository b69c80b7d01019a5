"""The agent loop: every way in which a task can end, and what the model is told on the way."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage

from whiflash_engine.errors import ConfigError, ContextLengthError
from whiflash_harnesses.environments import Environment, environment_factory
from whiflash_harnesses.loop import Agent, AgentConfig, Interrupt
from whiflash_harnesses.loop.scripted import ScriptedChatModel, calling, reply


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    (tmp_path / "testbed").mkdir()
    (tmp_path / "shared").mkdir()
    environment = environment_factory("local", unsafe_local=True)(tmp_path / "testbed", tmp_path / "shared")
    environment.write_file("code.py", "a = 1\nb = 1\n")
    return environment


def agent(environment: Environment, *replies: Any, **config: Any) -> Agent:
    return Agent(ScriptedChatModel(replies=list(replies)), environment, AgentConfig(**config))


def answers(run: Agent) -> list[str]:
    return [str(m.content) for m in run.messages[2:] if not isinstance(m, AIMessage)]


def test_bash_edit_submit(environment: Environment) -> None:
    run = agent(
        environment,
        calling("bash", command="cat code.py"),
        calling("edit", path="code.py", search="a = 1", replace="a = 2"),
        calling("submit"),
    )
    assert run.run("a should be 2").exit_status == "submitted"
    assert answers(run) == ["exit code 0\na = 1\nb = 1\n", "changed code.py", "submitted"]
    assert environment.read_file("code.py") == "a = 2\nb = 1\n"
    assert [turn.calls[0].split()[0] for turn in run.turns] == ["bash", "edit", "submit"]
    assert run.turns[0].usage["output_tokens"] == 20


def test_each_prompt_is_the_previous_one_and_more(environment: Environment) -> None:
    model = ScriptedChatModel(replies=[calling("bash", command=f"echo {i}") for i in range(4)])
    Agent(model, environment, AgentConfig(steps=4)).run("issue")
    for before, after in zip(model.seen, model.seen[1:], strict=False):
        assert after[: len(before)] == before and len(after) > len(before)
    other = ScriptedChatModel(replies=[calling("submit")])
    Agent(other, environment, AgentConfig()).run("issue")
    assert other.seen[0] == model.seen[0]  # nothing in it changes from run to run
    assert model.bound["tool_choice"] == "any"
    assert [tool.name for tool in model.bound["tools"]] == ["bash", "edit", "submit"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"path": "code.py", "search": "zzz", "replace": "y"}, "not found in code.py"),
        ({"path": "code.py", "search": "1", "replace": "y"}, "found 2 times in code.py"),
        ({"path": "none.py", "search": "1", "replace": "y"}, "none.py: no such file"),
        ({"path": "code.py", "search": "", "replace": "y"}, "code.py exists"),
        ({"path": "code.py", "search": "a", "replace": "a"}, "the same text"),
        ({"path": "latin.py", "search": "a", "replace": "b"}, "latin.py: not UTF-8 text"),
    ],
)
def test_an_edit_that_cannot_be_made_says_why_and_changes_nothing(
    environment: Environment, arguments: dict[str, str], said: str
) -> None:
    environment.execute(r"printf '\xe9a' > latin.py", 10)
    run = agent(environment, calling("edit", **arguments), calling("submit"))
    run.run("issue")
    assert answers(run)[0].startswith("not changed: ") and said in answers(run)[0]
    assert environment.read_file("code.py") == "a = 1\nb = 1\n"
    assert run.turns[0].malformed == 0


def test_an_edit_with_an_empty_search_creates_a_file(environment: Environment) -> None:
    run = agent(environment, calling("edit", path="new/file.py", search="", replace="x"), calling("submit"))
    run.run("issue")
    assert environment.read_file("new/file.py") == "x"


def test_malformed_calls_are_answered_counted_and_can_be_repaired(environment: Environment) -> None:
    invalid = {"name": "bash", "args": "{", "id": "x", "error": "ends too soon", "type": "invalid_tool_call"}
    run = agent(
        environment,
        reply("", invalid=[invalid]),
        calling("fly", height=3),
        calling("bash", cmd="ls"),
        reply("I think it is fixed."),
        calling("bash", command="ls"),
        calling("submit"),
    )
    assert run.run("issue").exit_status == "submitted"
    assert [turn.malformed for turn in run.turns] == [1, 1, 1, 1, 0, 0]
    said = answers(run)
    assert "ends too soon" in said[0]
    assert said[1] == "There is no tool fly. Call one of: bash, edit, submit."
    assert "command: field required" in said[2] and "cmd: extra inputs" in said[2]
    assert said[3].startswith("No tool was called")
    assert isinstance(run.messages[3], ToolMessage) and run.messages[3].tool_call_id == "x"
    assert isinstance(run.messages[9], HumanMessage)


def test_a_reply_cut_at_its_limit_is_told_so(environment: Environment) -> None:
    run = agent(environment, reply("thinking", finish_reason="length"), calling("submit"), turn_tokens=20)
    run.run("issue")
    assert run.turns[0].finish_reason == "length"
    assert "cut at its limit of 20 tokens" in answers(run)[0]


def test_a_repeated_call_is_pointed_out(environment: Environment) -> None:
    same = calling("bash", command="ls")
    run = agent(environment, same, same, steps=2)
    run.run("issue")
    assert "same call" not in answers(run)[0] and "same call" in answers(run)[1]


def test_a_command_that_takes_too_long_is_stopped(environment: Environment) -> None:
    run = agent(environment, calling("bash", command="echo begun; sleep 60"), calling("submit"), command_timeout=1)
    run.run("issue")
    assert answers(run)[0] == "stopped after 1 seconds\nbegun\n"
    assert 0.5 < run.turns[0].tool_s < 30


def test_limits_have_their_own_exit_status(environment: Environment) -> None:
    work = calling("bash", command="true")
    outcome = agent(environment, work, steps=3).run("issue")
    assert (outcome.exit_status, outcome.detail) == ("step_limit", "3 steps")
    tokens = agent(environment, work, max_tokens=30)
    assert tokens.run("issue").exit_status == "token_limit"
    assert len(tokens.turns) == 2
    slow = agent(environment, calling("bash", command="sleep 30"), wall_clock=0.5)
    assert slow.run("issue").exit_status == "wall_clock_limit"
    assert len(slow.turns) == 1 and slow.turns[0].tool_s < 20


class Counting(ScriptedChatModel):
    """Counts a token per word and tool, in a window of 1000."""

    def context_window(self) -> int:
        return 1000

    def get_num_tokens_from_messages(self, messages: list[BaseMessage], tools: Any = None) -> int:
        return len(tools) + sum(len(str(m.content).split()) for m in messages)


def test_a_prompt_that_would_not_fit_is_never_sent(environment: Environment) -> None:
    model = Counting(replies=[calling("bash", command="seq 1 900")])
    outcome = Agent(model, environment, AgentConfig(turn_tokens=300)).run("issue")
    assert outcome.exit_status == "context_exceeded" and "exceed 1000" in outcome.detail
    assert len(model.seen) == 1


@pytest.mark.parametrize("error", [ContextOverflowError("too long"), ContextLengthError("too long")])
def test_an_overflow_that_the_model_reports_is_the_same(environment: Environment, error: Exception) -> None:
    outcome = agent(environment, calling("bash", command="ls"), error).run("issue")
    assert (outcome.exit_status, outcome.detail) == ("context_exceeded", "too long")


def test_a_failing_model_ends_the_task_and_a_wrong_setting_ends_the_run(environment: Environment) -> None:
    outcome = agent(environment, calling("bash", command="ls"), RuntimeError("engine died")).run("issue")
    assert (outcome.exit_status, outcome.detail) == ("model_error", "RuntimeError: engine died")
    with pytest.raises(ConfigError, match="unknown model"):
        agent(environment, ConfigError("unknown model")).run("issue")


def test_ctrl_c_once_finishes_the_step_twice_stops(environment: Environment) -> None:
    def press() -> AIMessage:
        os.kill(os.getpid(), signal.SIGINT)
        return calling("bash", command="echo finished > done.txt")

    before = signal.getsignal(signal.SIGINT)  # ignored, where a shell started this in the background
    told: list[str] = []
    with Interrupt(told.append) as interrupt:
        model = ScriptedChatModel(replies=[press])
        run = Agent(model, environment, AgentConfig(), should_stop=lambda: interrupt.requested)
        assert run.run("issue").exit_status == "interrupted"
        assert environment.read_file("done.txt") == "finished\n"
        assert len(run.turns) == 1 and len(told) == 1
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_first_commands_are_run_for_the_model_and_are_no_turns_of_its_own(environment: Environment) -> None:
    """They stand before its first turn as calls, with their real output."""
    run = agent(environment, calling("submit"), first_commands=["ls", "cat code.py"])
    run.run("issue")
    assert answers(run)[:2] == ["exit code 0\ncode.py\n", "exit code 0\na = 1\nb = 1\n"]
    replies = [message for message in run.messages if isinstance(message, AIMessage)]
    assert [message.tool_calls[0]["name"] for message in replies] == ["bash", "bash", "submit"]
    assert [run.turn_of(message) is not None for message in replies] == [False, False, True]
    assert len(run.turns) == 1
