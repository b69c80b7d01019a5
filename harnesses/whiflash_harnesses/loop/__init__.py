"""The agent loop: one conversation of a chat model with three tools, until it submits or meets a limit.

    messages -> model.bind_tools([bash, edit, submit]) -> run the calls -> tool messages -> ...

History is linear and never cut: every turn's prompt is the previous one plus its answers, byte for byte, so
that the engine's prefix cache holds all of it.
"""

from whiflash_harnesses.loop.agent import Agent, Outcome, Turn
from whiflash_harnesses.loop.config import AgentConfig, ExitStatus
from whiflash_harnesses.loop.interrupt import Interrupt

__all__ = ["Agent", "AgentConfig", "ExitStatus", "Interrupt", "Outcome", "Turn"]
