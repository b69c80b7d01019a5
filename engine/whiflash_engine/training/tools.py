"""Tools that training prompts offer, and the constraints that make a small model call them.

The target is too small to call tools unasked. A grammar holds its output to one of the three forms that an
engine produces: Hermes tags (``auto``), a list of calls (``required``), bare arguments (a named tool).
"""

import json
import random
from typing import Any

FORMS: tuple[str, ...] = ("hermes", "hermes_fitting", "required", "named")

_TEXT = {"type": "string", "minLength": 1, "maxLength": 120}
_SHORT = {"type": "string", "minLength": 1, "maxLength": 40}
_INT = {"type": "integer", "minimum": 1, "maximum": 999}
_SHORT_LIST = {"type": "array", "items": _SHORT, "minItems": 1, "maxItems": 4}

_SPECS: dict[str, tuple[str, dict[str, Any]]] = {
    "bash": ("Run a shell command.", {"command": _TEXT}),
    "view": ("Show a file.", {"path": _SHORT, "start": _INT, "end": _INT}),
    "edit": ("Replace text in a file.", {"path": _SHORT, "old": _TEXT, "new": _TEXT}),
    "submit": ("Hand in the work.", {}),
    "get_weather": ("Weather of a city.", {"city": _SHORT, "unit": {"type": "string", "enum": ["C", "F"]}}),
    "book_table": ("Book a restaurant.", {"restaurant": _SHORT, "people": _INT, "time": _SHORT}),
    "send_email": ("Send an email.", {"to": _SHORT, "subject": _SHORT, "body": _TEXT}),
    "search": ("Search the web.", {"query": _TEXT}),
    "convert": ("Convert units.", {"value": {"type": "number"}, "source": _SHORT, "target": _SHORT}),
    "find_flights": ("Find flights.", {"origin": _SHORT, "destination": _SHORT, "date": _SHORT}),
    "cancel_reservation": ("Cancel a reservation.", {"reservation_id": _SHORT, "reason": _TEXT}),
    "add_reminder": ("Set a reminder.", {"text": _TEXT, "when": _SHORT}),
    "add_items": ("Add to a list.", {"list": _SHORT, "items": _SHORT_LIST}),
    "translate": ("Translate text.", {"text": _TEXT, "language": _SHORT}),
    "get_user": ("Details of a user.", {"user_id": _SHORT}),
}
_AGENT_TOOLS = ("bash", "view", "edit", "submit")


def spec(name: str) -> dict[str, Any]:
    """Return the OpenAI tool definition of ``name`` with every parameter required."""
    description, properties = _SPECS[name]
    parameters = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": parameters},
    }


def offer(fitting: str, rng: random.Random) -> list[dict[str, Any]]:
    """Return the tools offered with a request: the agent's four, or the fitting one and up to two others."""
    if fitting in _AGENT_TOOLS:
        return [spec(name) for name in _AGENT_TOOLS]
    others = [name for name in _SPECS if name != fitting and name not in _AGENT_TOOLS]
    names = [fitting, *rng.sample(others, rng.randint(0, 2))]
    rng.shuffle(names)
    return [spec(name) for name in names]


def _call(tool: dict[str, Any], key: str) -> dict[str, Any]:
    function = tool["function"]
    properties = {"name": {"const": function["name"]}, key: function["parameters"]}
    return {
        "type": "object",
        "properties": properties,
        "required": ["name", key],
        "additionalProperties": False,
    }


def _hermes(offered: list[dict[str, Any]]) -> dict[str, Any]:
    schema = {"anyOf": [_call(tool, "arguments") for tool in offered]}
    content = {"type": "json_schema", "json_schema": schema}
    tag = {"type": "tag", "begin": "<tool_call>\n", "content": content, "end": "\n</tool_call>"}
    return {"structural_tag": json.dumps({"type": "structural_tag", "format": tag})}


def constraint(form: str, fitting: str, offered: list[dict[str, Any]]) -> dict[str, Any]:
    """Return keyword arguments of ``StructuredOutputsParams`` that hold an answer to ``form``."""
    chosen = [tool for tool in offered if tool["function"]["name"] == fitting]
    if form == "hermes":
        return _hermes(offered)
    if form == "hermes_fitting":
        return _hermes(chosen)
    if form == "required":
        items = {"anyOf": [_call(tool, "parameters") for tool in offered]}
        return {"json": {"type": "array", "items": items, "minItems": 1, "maxItems": 2}}
    return {"json": chosen[0]["function"]["parameters"]}
