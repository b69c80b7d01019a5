"""Limits and settings of the loop, and how a run of it can end."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

ExitStatus = Literal[
    "submitted",
    "step_limit",
    "token_limit",
    "wall_clock_limit",
    "context_exceeded",
    "model_error",
    "interrupted",
]


class AgentConfig(BaseModel):
    """What bounds one task. Every limit ends the task with its own exit status; none loses the work."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    steps: int = Field(default=30, ge=1)
    """Model calls."""
    max_tokens: int = Field(default=32_768, ge=1)
    """Generated tokens over all turns."""
    wall_clock: float = Field(default=1800.0, gt=0)
    """Seconds from the engine's start, looked at before each turn; a command gets no more than is left."""
    turn_tokens: int = Field(default=512, ge=16)
    """Generated tokens in one turn."""
    temperature: float = Field(default=0.0, ge=0.0)
    """0 by default: the same run twice is the same conversation."""
    tool_choice: Literal["any", "auto"] = "any"
    """``any`` makes every turn a tool call that the grammar keeps valid; ``auto`` lets the model talk."""
    first_commands: list[str] = Field(default_factory=list)
    """Commands run before the model's first turn and put before it as calls of its own: a small model goes on
    as it sees itself begin. They count as no turns; the trajectory marks them as given."""
    command_timeout: float = Field(default=60.0, gt=0)
    """Seconds for one command."""
    observation_bytes: int = Field(default=10_000, ge=200)
    """Bytes of a command's output that the model sees; the middle of more is cut, and the cut is told."""
    context_window: int | None = Field(default=None, ge=64)
    """Tokens that prompt and reply must fit into; ``None`` takes what the model's profile says."""
