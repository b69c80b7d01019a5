"""``ChatWhiFlash``: the LangChain chat model of an engine with routed drafters.

The way in and out::

    invoke / stream / batch / agents                        BaseChatModel: callbacks, cache, rate limit
      |  messages, tools, stop, per-call settings
      v
    _body            _messages.to_openai, _tools            one OpenAI chat request, vLLM's extras on top
      v
    Backend          EmbeddedBackend | RemoteBackend        the engine in this process, or a server (base_url)
      v
    _answers         read_completion | StreamReader         an AIMessage, or chunks that add up to it
      v
    AIMessage        content, tool_calls, invalid_tool_calls, usage_metadata,
                     response_metadata: model_name, finish_reason, logprobs,
                                        whiflash (rounds, drafted, accepted, share_by_drafter, seconds, ...)

Nothing starts at construction. The embedded engine starts at the first call, once per configuration and
process: models that differ only in router or sampling share it, since those travel with each request.
"""

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing, closing
from threading import Lock
from typing import Any, Self

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.exceptions import ModelNotFoundError
from langchain_core.language_models import LanguageModelInput, ModelProfile
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable
from pydantic import Field, PrivateAttr, SkipValidation

from whiflash_agent import _structured
from whiflash_agent._answers import Expected, StreamReader, read_completions
from whiflash_agent._backends import Backend, EmbeddedBackend, RemoteBackend
from whiflash_agent._messages import to_openai
from whiflash_agent._settings import SAMPLING, Settings, check_answers, engine_config
from whiflash_agent._tools import ToolChoice, ToolLike, format_tools, tool_arguments
from whiflash_agent.profiles import build_profile, known_window
from whiflash_engine.config import ROUTER_KEY, check_router
from whiflash_engine.errors import ConfigError


class ChatWhiFlash(Settings):
    """Chat model on an embedded vLLM engine (or a server) with EAGLE-3 and DFlash drafting.

    Example:
        .. code-block:: python

            from whiflash_agent import ChatWhiFlash

            model = ChatWhiFlash(temperature=0)  # the small embedded model, on the CPU
            answer = model.invoke("Write a haiku about speculation.")
            answer.response_metadata["whiflash"]["mean_acceptance_length"]

    Any request field of vLLM's may be given per call or in ``model_kwargs`` (``top_k``, ``min_p``,
    ``repetition_penalty``, ``chat_template_kwargs``, ...); per call also ``router``.

    Errors are those of ``langchain_core.exceptions`` (see :mod:`whiflash_agent.exceptions`); settings that
    cannot work raise :class:`whiflash_engine.errors.ConfigError`.
    """

    backend: SkipValidation[Backend | None] = Field(default=None, exclude=True, repr=False)
    """Who answers instead of the engine or server that the settings name, for instance in tests."""

    _backend: Backend | None = PrivateAttr(default=None)
    _backend_lock: Any = PrivateAttr(default_factory=Lock)

    def _resolve_model_profile(self) -> ModelProfile:
        return build_profile(self.model, self._expected_window(), self.max_tokens)

    def _expected_window(self) -> int | None:
        """Return the context window as far as it is known without starting or asking anyone."""
        if self.max_model_len is not None:
            return self.max_model_len
        if self.backend is not None:
            return self.backend.max_model_len()
        return None if self.base_url else known_window(self.model)

    # Backend

    def _get_backend(self) -> Backend:
        with self._backend_lock:
            if self._backend is None:
                self._backend = self.backend or self._make_backend()
            return self._backend

    def _make_backend(self) -> Backend:
        if self.base_url is not None:
            key = self.api_key.get_secret_value() if self.api_key else None
            named = self.model if "model" in self.model_fields_set else None
            return RemoteBackend(self.base_url, key, self.timeout, self.max_retries, named)
        return EmbeddedBackend(engine_config(self.model_dump()), self.timeout)

    def context_window(self) -> int:
        """Return the context window in tokens as the engine or server has it, and note it in ``profile``.

        Starts the embedded engine if it does not run yet.
        """
        window = self._get_backend().max_model_len()
        self.profile = ModelProfile(**{**(self.profile or {}), "max_input_tokens": window})
        return window

    def close(self) -> None:
        """Release the backend. The embedded engine stops; its next user starts a new one."""
        with self._backend_lock:
            if self._backend is not None:
                self._backend.close()
            self._backend = None

    def __enter__(self) -> Self:
        """Return the model; it is closed at the end of the ``with`` block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the model."""
        self.close()

    # Requests

    def _body(self, messages: list[BaseMessage], stop: list[str] | None, call: dict[str, Any]) -> dict[str, Any]:
        """Build the OpenAI chat request of one call; ``call`` wins over the model's own settings."""
        settings = {name: getattr(self, name) for name in SAMPLING} | self.model_kwargs | call
        settings.pop("stream", None)
        if (n := check_answers(settings.pop("n", None) or self.n)) > 1:
            settings["n"] = n
        if router := settings.pop("router", None) or self.router:
            settings["vllm_xargs"] = {ROUTER_KEY: check_router(router), **(settings.get("vllm_xargs") or {})}
        if settings.pop("trace", self.trace):
            settings["whiflash_trace"] = True
        settings["model"] = self._requested_model(settings.get("model"))
        settings["stop"] = (self.stop if stop is None else stop) or None
        body = {key: value for key, value in settings.items() if value is not None}
        return {"messages": to_openai(messages, merge_roles=self.merge_roles), **body}

    def _stream_body(
        self, messages: list[BaseMessage], stop: list[str] | None, call: dict[str, Any]
    ) -> tuple[dict[str, Any], StreamReader]:
        usage = call.pop("stream_usage", self.stream_usage)
        body = self._body(messages, stop, call)
        if body.get("n"):
            raise ConfigError(f"n={body['n']} cannot be streamed: use generate(), or n=1")
        # Asked for in any case: the figures of the rounds come with the usage.
        body["stream_options"] = {"include_usage": True, **(body.get("stream_options") or {})}
        return body, StreamReader(Expected.of(body), with_usage=usage)

    def _requested_model(self, asked: str | None) -> str | None:
        """Return the name a call sends: a server may know several models, an engine has one, without name."""
        if self.base_url is not None:
            return asked
        if asked not in (None, self.model):
            raise ModelNotFoundError(
                f"model {asked!r} does not run here: the engine of this model has {self.model!r}"
            )
        return None

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        body = self._body(messages, stop, kwargs)
        return _result(read_completions(self._get_backend().chat(body), Expected.of(body)))

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        body = self._body(messages, stop, kwargs)
        return _result(read_completions(await self._get_backend().achat(body), Expected.of(body)))

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        body, reader = self._stream_body(messages, stop, kwargs)
        with closing(self._get_backend().stream(body)) as chunks:  # type: ignore[type-var]
            for chunk in chunks:
                yield from map(_generation_chunk, reader.feed(chunk))
        yield from map(_generation_chunk, reader.finish())

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        body, reader = self._stream_body(messages, stop, kwargs)
        async with aclosing(self._get_backend().astream(body)) as chunks:  # type: ignore[type-var]
            async for chunk in chunks:
                for piece in reader.feed(chunk):
                    yield _generation_chunk(piece)
        for piece in reader.finish():
            yield _generation_chunk(piece)

    # Tokens

    def get_num_tokens_from_messages(
        self, messages: list[BaseMessage], tools: Sequence[ToolLike] | None = None
    ) -> int:
        """Return the exact prompt tokens of a conversation under the model's template, tools included."""
        body: dict[str, Any] = {"messages": to_openai(messages, merge_roles=self.merge_roles)}
        if tools:
            body["tools"] = format_tools(tools)
        return self._get_backend().count_tokens(body)

    def get_token_ids(self, text: str) -> list[int]:
        """Return the tokens of a bare text under the model's own tokenizer (core would take GPT-2's).

        A conversation takes more: the template adds to it, see :meth:`get_num_tokens_from_messages`.
        """
        if self.custom_get_token_ids is not None:
            return self.custom_get_token_ids(text)
        return self._get_backend().tokenize(text)

    # Tools and structure

    def bind_tools(
        self,
        tools: Sequence[ToolLike],
        *,
        tool_choice: ToolChoice = None,
        strict: bool | None = None,
        parallel_tool_calls: bool | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """Bind tools in any of LangChain's forms, or as OpenAI, Anthropic or JSON schema dicts.

        ``tool_choice``: ``auto``, ``none``, ``any``/``required``/``True``, a tool's name, or OpenAI's dict. A
        forced choice gives one call whose arguments follow the schema, unless ``parallel_tool_calls=True`` or
        ``strict=False`` say otherwise.
        """
        fields = tool_arguments(tools, tool_choice, strict=strict, parallel=parallel_tool_calls)
        return self.bind(**fields, **kwargs)

    def with_structured_output(
        self,
        schema: _structured.Schema | None = None,
        *,
        method: _structured.Method = "function_calling",
        include_raw: bool = False,
        strict: bool | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, Any]:
        """Return a model that answers with objects of ``schema``: pydantic, TypedDict or JSON schema.

        ``function_calling`` forces a call of a tool of that schema, ``json_schema`` holds the text to it by
        grammar, ``json_mode`` to being a JSON object. An answer that is cut raises ``OutputParserException``.
        """
        model, parser = _structured.bind_structure(self, schema, method, strict, **kwargs)
        return _structured.with_raw(model, parser) if include_raw else model | parser


def _result(messages: list[AIMessage]) -> ChatResult:
    return ChatResult(generations=[ChatGeneration(message=message) for message in messages])


def _generation_chunk(chunk: AIMessageChunk) -> ChatGenerationChunk:
    return ChatGenerationChunk(message=chunk)
