"""The three tools of the agent, and what is said when a call of one cannot be carried out."""

from collections.abc import Callable
from typing import Any, NamedTuple

from langchain_core.tools import BaseTool, StructuredTool
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from whiflash_harnesses.environments import Environment
from whiflash_harnesses.loop.prompts import prompt


class ToolAnswer(NamedTuple):
    """What one tool call comes back with."""

    text: str
    malformed: bool = False
    """The call itself was wrong (unknown tool, invalid arguments), so nothing was done."""
    submit: bool = False


class _Arguments(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _Bash(_Arguments):
    command: str = Field(description="shell command")


class _Edit(_Arguments):
    path: str = Field(description="file to change")
    search: str = Field(description="exact text now in the file, found once; empty to create a new file")
    replace: str = Field(description="text to put in its place")


class _Submit(_Arguments):
    pass


class Toolbox:
    """Carries out tool calls in ``environment``."""

    def __init__(self, environment: Environment, observation_bytes: int) -> None:
        self._environment = environment
        self._limit = observation_bytes
        self.seconds_left = 60.0
        """Time limit of the next command; the loop sets it before each call."""
        self._tools = {
            "bash": _tool("bash", "Run a shell command.", self._bash, _Bash),
            "edit": _tool("edit", "Replace text in a file.", self._edit, _Edit),
            "submit": _tool("submit", "Hand in the work.", self._submit, _Submit),
        }

    @property
    def tools(self) -> list[BaseTool]:
        """The tools in the order in which the model is told of them."""
        return list(self._tools.values())

    def call(self, name: str, arguments: dict[str, Any]) -> ToolAnswer:
        """Carry out one call; a call that makes no sense is answered, never raised."""
        tool = self._tools.get(name)
        if tool is None:
            return ToolAnswer(prompt("unknown_tool", name=name), malformed=True)
        try:
            answer: ToolAnswer = tool.invoke(arguments)
        except ValidationError as error:
            return ToolAnswer(
                prompt("bad_arguments", name=name, problem=_one_line(error)),
                malformed=True,
            )
        return answer

    def _bash(self, command: str) -> ToolAnswer:
        seconds = self.seconds_left
        result = self._environment.execute(command, seconds, limit=self._limit)
        name = "command_timeout" if result.timed_out else "command"
        return ToolAnswer(prompt(name, result=result, seconds=seconds))

    def _edit(self, path: str, search: str, replace: str) -> ToolAnswer:
        try:
            return ToolAnswer(self._replace(path, search, replace))
        except (OSError, ValueError) as error:
            return ToolAnswer(f"not changed: {error}")

    def _replace(self, path: str, search: str, replace: str) -> str:
        if not search:
            return self._create(path, replace)
        if search == replace:
            return "not changed: search and replace are the same text"
        text = self._environment.read_file(path)
        found = text.count(search)
        if found == 0:
            return f"not changed: the search text is not found in {path}; it must match to the last space"
        if found > 1:
            return f"not changed: the search text is found {found} times in {path}; add lines around it"
        self._environment.write_file(path, text.replace(search, replace))
        return f"changed {path}"

    def _create(self, path: str, text: str) -> str:
        try:
            self._environment.read_file(path)
        except FileNotFoundError:
            self._environment.write_file(path, text)
            return f"created {path}"
        return f"not changed: {path} exists; give the text to search for"

    def _submit(self) -> ToolAnswer:
        return ToolAnswer("submitted", submit=True)


def _tool(name: str, description: str, run: Callable[..., ToolAnswer], arguments: type[BaseModel]) -> BaseTool:
    return StructuredTool.from_function(
        func=run, name=name, description=description, args_schema=arguments, infer_schema=False
    )


def _one_line(error: ValidationError) -> str:
    return "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg'].lower()}" for e in error.errors())
