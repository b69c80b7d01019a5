"""AsyncLLM behind vLLM's own OpenAI chat serving: the one file that uses that semi-private interface.

Templates, tool and reasoning parsing, grammars and usage are the server's by construction. The pattern is
that of vLLM's batch runner (``vllm/entrypoints/launchers/run_batch.py``). ``tests/test_serving_contract.py``
guards what is used here.
"""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

from pydantic import ValidationError
from starlette.datastructures import State

from whiflash_engine.config import EngineConfig
from whiflash_engine.errors import ContextLengthError, EngineError, RequestError
from whiflash_engine.service.forking import detach_finalizers

DEAD = "the engine failed at this request: call again, it starts anew if it has died"


class ChatServing:
    """One running engine; create it with :meth:`start` on the event loop that will use it."""

    def __init__(self, engine: Any, state: State) -> None:
        self.engine = engine
        self._chat = state.openai_serving_chat

    @classmethod
    async def start(cls, config: EngineConfig, models: Any) -> "ChatServing":
        """Start the engine core (a process of its own) and the serving objects."""
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.entrypoints.launchers.api_server.app_state import init_app_state
        from vllm.platforms import current_platform
        from vllm.v1.engine.async_llm import AsyncLLM

        from whiflash_engine.service.arguments import server_arguments

        arguments = server_arguments(config, models, on_cpu=current_platform.is_cpu())
        engine = AsyncLLM.from_engine_args(AsyncEngineArgs.from_cli_args(arguments))
        try:
            state = State()
            await init_app_state(engine, state, arguments, await engine.get_supported_tasks())
            return cls(engine, state)
        except BaseException:
            engine.shutdown()
            raise

    @property
    def max_model_len(self) -> int:
        """Context window in tokens."""
        return int(self.engine.model_config.max_model_len)

    @property
    def tokenizer(self) -> Any:
        """The target's tokenizer."""
        return self.engine.get_tokenizer()

    async def chat(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return the ``chat.completion`` dict of one request."""
        answer = await self._create({**body, "stream": False})
        completion: dict[str, Any] = answer.model_dump()
        return completion

    async def stream(self, body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """Yield the ``chat.completion.chunk`` dicts of one request; the last one carries the usage."""
        options = {"include_usage": True}
        events = await self._create({**body, "stream": True, "stream_options": options})
        async for event in events:
            for line in event.split("\n"):  # not splitlines: text may hold other line separators
                data = line.removeprefix("data: ").strip()
                if not line.startswith("data: ") or data == "[DONE]":
                    continue
                chunk = json.loads(data)
                if "error" in chunk:
                    raise _refused(chunk["error"])
                yield chunk

    async def count_tokens(self, body: dict[str, Any]) -> int:
        """Return the prompt tokens of ``messages`` (and ``tools``) under the target's template."""
        request = self._request({**body, "max_tokens": 1, "stream": False})
        with _as_request_errors():
            rendered = await self._chat.render_chat_request(request)
        if hasattr(rendered, "error"):
            raise _refused(rendered.error.model_dump())
        _, engine_inputs = rendered
        return len(self._chat._extract_prompt_components(engine_inputs[0]).token_ids)

    async def call_worker(self, method: str, *args: Any) -> Any:
        """Call a method of the (first) worker in the engine core."""
        with _dead_as_engine_error():
            return (await self.engine.collective_rpc(method, args=args))[0]

    def shutdown(self) -> None:
        """Stop the engine core."""
        self.engine.shutdown()
        # vLLM's finalizer calls it again, maybe as late as the interpreter's end, when its module is empty.
        self.engine.shutdown = lambda: None

    def forget(self) -> None:
        """Keep vLLM's clean-up from ending an engine core that belongs to another process."""
        core = self.engine.engine_core
        detach_finalizers(core, core.resources.engine_manager, core.resources.coordinator)
        self.engine.shutdown = lambda: None

    def _request(self, body: dict[str, Any]) -> Any:
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

        try:
            return ChatCompletionRequest.model_validate(body)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"]) or "body"
            raise RequestError(f"bad request: {where}: {first['msg']}") from error

    async def _create(self, body: dict[str, Any]) -> Any:
        request = self._request(body)
        with _dead_as_engine_error(), _as_request_errors():
            answer = await self._chat.create_chat_completion(request)
        if hasattr(answer, "error"):
            raise _refused(answer.error.model_dump())
        return answer


@contextmanager
def _dead_as_engine_error() -> Iterator[None]:
    """Turn vLLM's word that the core is dead, or lost this request, into :class:`EngineError`."""
    from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

    try:
        yield
    except (EngineDeadError, EngineGenerateError) as error:
        raise EngineError(f"{DEAD} ({error or type(error).__name__})") from error


@contextmanager
def _as_request_errors() -> Iterator[None]:
    """Turn the errors by which vLLM refuses a request into :class:`RequestError`."""
    from vllm.exceptions import VLLMClientError, VLLMNotFoundError

    try:
        yield
    except VLLMNotFoundError as error:
        raise _refused({"message": str(error), "type": "NotFoundError", "code": 404}) from error
    except (VLLMClientError, ValueError) as error:
        raise _refused({"message": str(error), "type": "BadRequestError", "code": 400}) from error


def _refused(error: dict[str, Any]) -> RequestError | EngineError:
    message = str(error.get("message", error))
    status = int(error.get("code") or 400)
    kind = str(error.get("type", "BadRequestError"))
    if status >= 500:
        return EngineError(f"{DEAD} ({message})")
    if "maximum context length" in message or "max_model_len" in message:
        return ContextLengthError(message, status=status, kind=kind)
    return RequestError(message, status=status, kind=kind)
