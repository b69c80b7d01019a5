"""Structured output: how the schema is asked for, and parsers that report an answer that was cut.

core's parsers complete unfinished JSON and take "no tool call" for ``None``; with a token limit that would
hand out objects the model never finished.
"""

from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal

from langchain_core.exceptions import OutputParserException
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage
from langchain_core.output_parsers import BaseOutputParser, JsonOutputParser, PydanticOutputParser
from langchain_core.output_parsers.base import BaseGenerationOutputParser
from langchain_core.output_parsers.openai_tools import JsonOutputKeyToolsParser, PydanticToolsParser
from langchain_core.outputs import ChatGeneration, Generation
from langchain_core.runnables import Runnable, RunnableMap, RunnablePassthrough
from langchain_core.utils.function_calling import convert_to_json_schema, convert_to_openai_tool
from langchain_core.utils.pydantic import is_basemodel_subclass

from whiflash_engine.errors import ConfigError

if TYPE_CHECKING:  # a type variable of PydanticOutputParser's that pydantic's mypy plugin looks up here
    from langchain_core.output_parsers.pydantic import TBaseModel  # noqa: F401

Method = Literal["function_calling", "json_schema", "json_mode"]
Schema = dict[str, Any] | type[Any]
AnyParser = BaseOutputParser[Any] | BaseGenerationOutputParser[Any]


def _refuse_unfinished(result: list[Generation], *, needs_call: bool) -> None:
    message = result[0].message if isinstance(result[0], ChatGeneration) else None
    cut = message is not None and message.response_metadata.get("finish_reason") == "length"
    called = bool(getattr(message, "tool_calls", None))
    if needs_call and called:
        return
    if cut:
        raise OutputParserException(
            "the structured answer was cut off: raise max_tokens", llm_output=result[0].text
        )
    if needs_call:
        raise OutputParserException("the model made no valid call of the schema's tool", llm_output=result[0].text)


class _WholeCall:
    def parse_result(self, result: list[Generation], *, partial: bool = False) -> Any:
        if not partial:
            _refuse_unfinished(result, needs_call=True)
        return super().parse_result(result, partial=partial)  # type: ignore[misc]


class _WholeJson:
    def parse_result(self, result: list[Generation], *, partial: bool = False) -> Any:
        if not partial:
            _refuse_unfinished(result, needs_call=False)
        return super().parse_result(result, partial=partial)  # type: ignore[misc]


class _PydanticCall(_WholeCall, PydanticToolsParser):
    pass


class _DictCall(_WholeCall, JsonOutputKeyToolsParser):
    pass


class _PydanticJson(_WholeJson, PydanticOutputParser[Any]):
    pass


class _DictJson(_WholeJson, JsonOutputParser):
    pass


def tool_parser(schema: Schema) -> AnyParser:
    """Return the parser for an answer that is a call of the schema's tool."""
    if isinstance(schema, type) and is_basemodel_subclass(schema):
        return _PydanticCall(tools=[schema], first_tool_only=True)
    return _DictCall(key_name=schema_name(schema), first_tool_only=True)


def json_parser(schema: Schema | None) -> AnyParser:
    """Return the parser for an answer that is JSON text."""
    if isinstance(schema, type) and is_basemodel_subclass(schema):
        return _PydanticJson(pydantic_object=schema)
    return _DictJson()


def schema_name(schema: Schema) -> str:
    """Return the name under which the schema is known as a tool."""
    return str(convert_to_openai_tool(schema)["function"]["name"])


def response_format(schema: Schema, strict: bool | None) -> dict[str, Any]:
    """Return OpenAI's ``response_format`` that holds the answer to the schema."""
    spec = convert_to_json_schema(schema, strict=strict)
    named: dict[str, Any] = {"name": schema_name(schema), "schema": spec}
    if strict is not None:
        named["strict"] = strict
    return {"type": "json_schema", "json_schema": named}


def bind_structure(
    model: BaseChatModel, schema: Schema | None, method: Method, strict: bool | None, **kwargs: Any
) -> tuple[Runnable[LanguageModelInput, AIMessage], AnyParser]:
    """Return the model bound to answer in the schema's form, and the parser of such answers."""
    kwargs["ls_structured_output_format"] = {"kwargs": {"method": method, "strict": strict}, "schema": schema}
    if method == "json_mode":
        return model.bind(response_format={"type": "json_object"}, **kwargs), json_parser(schema)
    if schema is None:
        raise ConfigError(f"method={method!r} needs a schema (json_mode does not)")
    if method == "json_schema":
        return model.bind(response_format=response_format(schema, strict), **kwargs), json_parser(schema)
    if method != "function_calling":
        raise ConfigError(f"unknown method {method!r}: choose function_calling, json_schema or json_mode")
    name = schema_name(schema)
    return model.bind_tools([schema], tool_choice=name, strict=strict, **kwargs), tool_parser(schema)


def with_raw(model: Runnable[Any, Any], parser: AnyParser) -> Runnable[Any, Any]:
    """Return ``{"raw", "parsed", "parsing_error"}`` and raise no parsing error."""
    parsed = RunnablePassthrough.assign(parsed=itemgetter("raw") | parser, parsing_error=lambda _: None)
    failed = RunnablePassthrough.assign(parsed=lambda _: None)
    return RunnableMap(raw=model) | parsed.with_fallbacks([failed], exception_key="parsing_error")
