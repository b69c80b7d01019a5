"""One task's conversation as a file in the manner of mini-swe-agent 1.1, with our figures in ``extra``."""

from dataclasses import asdict
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, convert_to_openai_messages

from whiflash_harnesses.loop import Agent, Outcome
from whiflash_harnesses.swebench.versions import versions

FORMAT = "mini-swe-agent-1.1"


def trajectory(
    instance_id: str, agent: Agent, outcome: Outcome | None, patch: str, config: dict[str, Any]
) -> dict[str, Any]:
    """Return the trajectory as JSON data; ``outcome`` is ``None`` while the task is being worked on."""
    return {
        "info": {
            "exit_status": outcome.exit_status if outcome else None,
            "exit_detail": outcome.detail if outcome else "",
            "submission": patch,
            "model_stats": _model_stats(agent),
            "config": config,
            "versions": versions(),
        },
        "messages": [_message(message, agent) for message in agent.messages],
        "trajectory_format": FORMAT,
        "instance_id": instance_id,
    }


def _model_stats(agent: Agent) -> dict[str, Any]:
    usages = [turn.usage for turn in agent.turns]
    return {
        "instance_cost": 0.0,
        "api_calls": len(agent.turns),
        "tokens_sent": sum(usage.get("input_tokens", 0) for usage in usages),
        "tokens_received": sum(usage.get("output_tokens", 0) for usage in usages),
    }


def _message(message: BaseMessage, agent: Agent) -> dict[str, Any]:
    converted = convert_to_openai_messages(message)
    assert isinstance(converted, dict)
    converted["extra"] = {"given": True} if message.additional_kwargs.get("given") else {}
    turn = agent.turn_of(message)
    if isinstance(message, AIMessage) and turn:
        converted["extra"] = asdict(turn) | {"invalid_tool_calls": message.invalid_tool_calls}
    return converted
