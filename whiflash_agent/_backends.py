"""Who answers: the engine inside this process, or a server. Both speak OpenAI chat dicts.

Request fields beyond OpenAI's (``vllm_xargs``, ``top_k``, ``chat_template_kwargs``, ``whiflash_trace``, ...)
stand at the top level of the body, as vLLM reads them. The completion, or its last chunk, has ``whiflash``.
"""

import asyncio
import inspect
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, closing
from functools import cached_property
from typing import Any, Protocol, TypeVar, runtime_checkable
from weakref import WeakKeyDictionary

import openai
from langchain_core.exceptions import ModelNotFoundError
from openai.resources.chat.completions import Completions

from whiflash_agent.exceptions import langchain_errors
from whiflash_engine.config import EngineConfig

Body = dict[str, Any]
T = TypeVar("T")


@runtime_checkable
class Backend(Protocol):
    """A source of OpenAI chat answers."""

    def chat(self, body: Body) -> dict[str, Any]:
        """Return a ``chat.completion`` dict."""

    def stream(self, body: Body) -> Iterator[dict[str, Any]]:
        """Yield ``chat.completion.chunk`` dicts; closing the iterator aborts the request."""

    async def achat(self, body: Body) -> dict[str, Any]:
        """Return a ``chat.completion`` dict; cancelling aborts the request."""

    def astream(self, body: Body) -> AsyncIterator[dict[str, Any]]:
        """Yield ``chat.completion.chunk`` dicts."""

    def max_model_len(self) -> int:
        """Return the context window in tokens."""

    def count_tokens(self, body: Body) -> int:
        """Return the prompt tokens of ``messages`` and ``tools`` under the model's own template."""

    def tokenize(self, text: str) -> list[int]:
        """Return the token ids of a bare text."""

    def close(self) -> None:
        """Release what the backend holds."""


class EmbeddedBackend:
    """The engine inside this process: started at first use, shared by all models of one configuration."""

    def __init__(self, config: EngineConfig, timeout: float | None = None) -> None:
        """``timeout``: seconds per request, the engine's start included."""
        self._config = config
        self._timeout = timeout

    @cached_property
    def _service(self) -> Any:
        # Imported late: it pulls in vLLM and torch, which takes seconds.
        from whiflash_engine.service import get_engine

        return get_engine(self._config)

    def chat(self, body: Body) -> dict[str, Any]:
        """Return a ``chat.completion`` dict."""
        with langchain_errors():
            if self._timeout is None:
                answer: dict[str, Any] = self._service.chat(body)
                return answer
            return _run(lambda: self._within_timeout(self._service.achat(body)))

    async def achat(self, body: Body) -> dict[str, Any]:
        """Return a ``chat.completion`` dict; cancelling aborts the request."""
        with langchain_errors():
            return await self._within_timeout(self._service.achat(body))

    async def _within_timeout(self, answer: Awaitable[dict[str, Any]]) -> dict[str, Any]:
        return await asyncio.wait_for(answer, self._timeout)

    def stream(self, body: Body) -> Iterator[dict[str, Any]]:
        """Yield ``chat.completion.chunk`` dicts; closing the iterator aborts the request."""
        limit = {} if self._timeout is None else {"timeout": self._timeout}
        with langchain_errors(), closing(self._service.stream({**body, "stream": True}, **limit)) as chunks:
            yield from chunks

    async def astream(self, body: Body) -> AsyncIterator[dict[str, Any]]:
        """Yield ``chat.completion.chunk`` dicts; closing the iterator aborts the request."""
        deadline = time.monotonic() + (self._timeout or float("inf"))
        with langchain_errors():
            async with aclosing(self._service.astream({**body, "stream": True})) as chunks:
                while True:
                    left = None if self._timeout is None else deadline - time.monotonic()
                    try:
                        async with asyncio.timeout(left):
                            chunk = await anext(chunks)
                    except StopAsyncIteration:
                        return
                    yield chunk

    def max_model_len(self) -> int:
        """Return the context window of the running engine, which is started if need be."""
        with langchain_errors():
            return int(self._service.max_model_len)

    def count_tokens(self, body: Body) -> int:
        """Return the prompt tokens under the model's own template."""
        with langchain_errors():
            return int(self._service.count_tokens(body))

    def tokenize(self, text: str) -> list[int]:
        """Return the token ids of a bare text."""
        with langchain_errors():
            ids: list[int] = self._service.tokenize(text)
            return ids

    def close(self) -> None:
        """Stop the engine if this backend has used it; its next user starts a new one."""
        if "_service" in self.__dict__:
            self._service.close()


def _run(make: Callable[[], Awaitable[T]]) -> T:
    """Run a coroutine from sync code, which may itself be called on an event loop's thread."""

    async def main() -> T:
        return await make()

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, main()).result()


_OPENAI_FIELDS = frozenset(inspect.signature(Completions.create).parameters) - {
    "self",
    "extra_body",
    "timeout",
}


def _openai_arguments(body: Body) -> dict[str, Any]:
    """Split a body into what the client's method takes by name and the rest, which vLLM reads."""
    known = {key: value for key, value in body.items() if key in _OPENAI_FIELDS}
    return {**known, "extra_body": {key: value for key, value in body.items() if key not in _OPENAI_FIELDS}}


class RemoteBackend:
    """A running ``python -m whiflash_agent.serve``, or any other server of vLLM's."""

    def __init__(
        self,
        base_url: str,
        api_key: str | None = None,
        timeout: float | None = None,
        max_retries: int = 2,
        model: str | None = None,
    ) -> None:
        """``model``: the served name; ``None`` takes the first one the server lists."""
        self._model = model
        # A local server asks for no key, but the client insists on one.
        settings = {"base_url": base_url, "api_key": api_key or "EMPTY", "timeout": timeout}
        self._settings: dict[str, Any] = {**settings, "max_retries": max_retries}
        self._root = base_url.rstrip("/").removesuffix("/v1")
        self._client: Any = openai.OpenAI(**self._settings)
        # An async client's connections belong to the event loop that opened them.
        self._async_clients: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()

    @property
    def _async_client(self) -> Any:
        loop = asyncio.get_running_loop()
        if loop not in self._async_clients:
            self._async_clients[loop] = openai.AsyncOpenAI(**self._settings)
        return self._async_clients[loop]

    @cached_property
    def _cards(self) -> list[dict[str, Any]]:
        with langchain_errors():
            return [card.model_dump() for card in self._client.models.list().data]

    def _complete(self, body: Body) -> Body:
        """Name the model if the caller has not."""
        if body.get("model"):
            return body
        if self._model is None and not self._cards:
            raise ModelNotFoundError(f"{self._root} serves no model")
        return {**body, "model": self._model or self._cards[0]["id"]}

    def chat(self, body: Body) -> dict[str, Any]:
        """Return a ``chat.completion`` dict."""
        with langchain_errors():
            return _dump(self._client.chat.completions.create(**_openai_arguments(self._complete(body))))

    def stream(self, body: Body) -> Iterator[dict[str, Any]]:
        """Yield ``chat.completion.chunk`` dicts; closing the iterator closes the connection."""
        arguments = _openai_arguments({**self._complete(body), "stream": True})
        with langchain_errors(), self._client.chat.completions.create(**arguments) as chunks:
            for chunk in chunks:
                yield _dump(chunk)

    async def achat(self, body: Body) -> dict[str, Any]:
        """Return a ``chat.completion`` dict; cancelling closes the connection."""
        with langchain_errors():
            arguments = _openai_arguments(await asyncio.to_thread(self._complete, body))
            return _dump(await self._async_client.chat.completions.create(**arguments))

    async def astream(self, body: Body) -> AsyncIterator[dict[str, Any]]:
        """Yield ``chat.completion.chunk`` dicts; closing the iterator closes the connection."""
        with langchain_errors():
            arguments = _openai_arguments({**await asyncio.to_thread(self._complete, body), "stream": True})
            async with await self._async_client.chat.completions.create(**arguments) as chunks:
                async for chunk in chunks:
                    yield _dump(chunk)

    def max_model_len(self) -> int:
        """Return the context window the server tells for the model."""
        for card in self._cards:
            if self._model in (None, card["id"]) and card.get("max_model_len"):
                return int(card["max_model_len"])
        raise ModelNotFoundError(f"{self._root} tells no max_model_len for {self._model or 'any model'}")

    def count_tokens(self, body: Body) -> int:
        """Return the prompt tokens, counted by the server's ``/tokenize``."""
        with langchain_errors():
            answer = self._client.post(f"{self._root}/tokenize", cast_to=object, body=self._complete(body))
            return int(answer["count"])

    def tokenize(self, text: str) -> list[int]:
        """Return the token ids of a bare text, from the server's ``/tokenize``."""
        with langchain_errors():
            asked = self._complete({"prompt": text, "add_special_tokens": False})
            answer = self._client.post(f"{self._root}/tokenize", cast_to=object, body=asked)
            return list(answer["tokens"])

    def close(self) -> None:
        """Close the connections of the sync client; async ones close with their event loops."""
        self._client.close()


def _dump(answer: Any) -> dict[str, Any]:
    dumped: dict[str, Any] = answer.model_dump(exclude_unset=True)
    return dumped
