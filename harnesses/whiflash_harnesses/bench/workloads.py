"""Bundled prompts: YAML beside the code, written for the bench alone and used in no training.

One file per workload; a request names the tools it offers and the one it forces (``required``: any of them).
"""

from dataclasses import dataclass
from importlib import resources
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict

from whiflash_engine.errors import ConfigError

WORKLOADS = ("tool_json", "diff", "code", "reasoning", "chat")
WARM_UP = "warm_up"


@dataclass(frozen=True)
class Prompt:
    """One request of a workload: the part of an OpenAI chat body that does not depend on the arm."""

    workload: str
    name: str
    body: dict[str, Any]


class _Tool(BaseModel):
    model_config = ConfigDict(extra="forbid")
    description: str
    parameters: dict[str, Any]


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid")
    id: str
    user: str
    tools: list[str] = []
    tool_choice: str = "required"


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")
    about: str
    system: str | None = None
    tools: dict[str, _Tool] = {}
    requests: list[_Request]


def check_workload(name: str) -> str:
    """Return ``name`` if it is a workload; raise :class:`ConfigError` if not."""
    if name not in WORKLOADS:
        raise ConfigError(f"unknown workload {name!r}: choose one of {', '.join(WORKLOADS)}")
    return name


def load_prompts(name: str) -> list[Prompt]:
    """Read the prompts of a workload, or of :data:`WARM_UP`, in the order of their file."""
    source = resources.files(__package__) / "prompts" / f"{name}.yaml"
    file = _File.model_validate(yaml.safe_load(source.read_text(encoding="utf-8")))
    return [Prompt(name, request.id, _body(file, request)) for request in file.requests]


def select_prompts(name: str, count: int) -> list[Prompt]:
    """Return the first ``count`` prompts of a workload; past the last one they repeat as ``<id>#2``, ..."""
    prompts = load_prompts(check_workload(name))
    chosen = []
    for index in range(count):
        turn, place = divmod(index, len(prompts))
        prompt = prompts[place]
        chosen.append(Prompt(name, f"{prompt.name}#{turn + 1}" if turn else prompt.name, prompt.body))
    return chosen


def _body(file: _File, request: _Request) -> dict[str, Any]:
    system = [{"role": "system", "content": file.system}] if file.system else []
    body: dict[str, Any] = {"messages": [*system, {"role": "user", "content": request.user}]}
    if request.tools:
        body["tools"] = [_function(name, file.tools[name]) for name in request.tools]
        body["tool_choice"] = _choice(request.tool_choice)
        body["parallel_tool_calls"] = False
    return body


def _function(name: str, tool: _Tool) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "strict": True, **tool.model_dump()}}


def _choice(name: str) -> str | dict[str, Any]:
    return name if name == "required" else {"type": "function", "function": {"name": name}}
