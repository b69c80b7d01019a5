"""An engine whose answers are written down: everything of vLLM's but the model.

Chat templates, tokenizer, detokenizer, stop strings, tool and reasoning parsers and the serving objects are the
real ones; only the engine core, which would run the target, is replaced by a script. It starts in seconds and
needs no weights. For tests of what lies above the model: see :mod:`whiflash_agent.testing`.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from whiflash_engine.checkpoints.embedded import prepare_target
from whiflash_engine.checkpoints.registry import DEFAULT_THRESHOLD, ResolvedModels
from whiflash_engine.config import EngineConfig
from whiflash_engine.service.engine import EngineService
from whiflash_engine.service.serving import ChatServing

BLOCK = 16
"""Tokens of a prefix-cache block: prompts that begin like an earlier one report whole blocks as cached."""


@dataclass(frozen=True)
class ScriptedRequest:
    """What the model would get."""

    prompt: str
    """The rendered prompt, special tokens included."""
    prompt_token_ids: list[int]
    sampling: Any
    """vLLM's ``SamplingParams``; ``structured_outputs`` holds the grammar, which nothing enforces here."""


Script = Callable[[ScriptedRequest], str | Sequence[int]]
"""Gives the answer to a request, as text or token ids. The end-of-turn token is added, unless it was cut."""

Cut = Callable[[Sequence[int]], Sequence[Sequence[int]]]
"""Divides an answer's tokens into rounds, as speculation does: one delta each."""


def token_by_token(tokens: Sequence[int]) -> list[Sequence[int]]:
    """Cut an answer into rounds of one token."""
    return [[token] for token in tokens]


class ScriptedService(EngineService):
    """An :class:`EngineService` whose answers come from ``script``; ``folder`` overrides the embedded target.

    ``folder`` needs a ``config.json``, a tokenizer and a chat template; no weights are read. Further vLLM engine
    arguments go into ``config.vllm_args``. It counts as no engine: any number may run beside the real one. An
    exception in the script is to the engine what a crash of its core is.
    """

    def __init__(
        self,
        script: Script,
        *,
        cut: Cut = token_by_token,
        folder: Path | None = None,
        config: EngineConfig | None = None,
    ) -> None:
        # `stock`: without drafters there are no rounds, hence no records to ask the core for.
        given = config or EngineConfig()
        super().__init__(given.model_copy(update={"stock": "off"}))
        self.script = script
        self.cut = cut
        self.aborted: list[str] = []
        """Ids of requests that the core was told to drop."""
        self.pause_s = 0.0
        """Seconds between two rounds."""
        self._folder = folder

    def _check_room(self) -> None:
        """It takes neither cores nor memory."""

    def _resolve(self) -> ResolvedModels:
        folder = self._folder or prepare_target(self.config.whiflash.target, progress=self.progress)
        return ResolvedModels(
            name=self.config.whiflash.target,
            target=str(folder),
            eagle3=None,
            dflash=None,
            router_threshold=DEFAULT_THRESHOLD,
        )

    async def _serve(self, models: ResolvedModels) -> ChatServing:
        core = _ScriptedCore(self)
        with _core_replaced(core):
            serving = await ChatServing.start(self.config, models)
        core.tokenizer = serving.tokenizer
        return serving


@contextmanager
def _core_replaced(core: "_ScriptedCore") -> Iterator[None]:
    """Have vLLM's ``AsyncLLM`` take ``core`` where it would start a process."""
    from vllm.v1.engine import async_llm

    original = async_llm.EngineCoreClient
    async_llm.EngineCoreClient = SimpleNamespace(make_async_mp_client=lambda **_: core)
    try:
        yield
    finally:
        async_llm.EngineCoreClient = original


class _ScriptedCore:
    """What ``AsyncLLM`` uses of vLLM's ``AsyncMPClient``."""

    def __init__(self, service: ScriptedService) -> None:
        self.resources = SimpleNamespace(engine_dead=False)
        self.tokenizer: Any = None
        self._service = service
        self._outputs: asyncio.Queue[Any] = asyncio.Queue()
        self._prompts: list[list[int]] = []
        self._running: dict[str, asyncio.Task[None]] = {}

    async def get_supported_tasks_async(self) -> tuple[str, ...]:
        return ("generate",)

    async def get_output_async(self) -> Any:
        outputs = await self._outputs.get()
        if isinstance(outputs, Exception):
            self.resources.engine_dead = True
            raise outputs
        return outputs

    async def add_request_async(self, request: Any) -> None:
        task = asyncio.create_task(self._answer(request))
        self._running[request.request_id] = task
        task.add_done_callback(lambda _: self._running.pop(request.request_id, None))

    async def abort_requests_async(self, request_ids: list[str]) -> None:
        self._service.aborted += request_ids
        for request_id in request_ids:
            if task := self._running.pop(request_id, None):
                task.cancel()

    def shutdown(self, timeout: float | None = None) -> None:
        self.resources.engine_dead = True

    async def _answer(self, request: Any) -> None:
        try:
            await self._put_rounds(request)
        except Exception as error:  # the script's: it ends the engine, as a crash of the core would
            self._outputs.put_nowait(error)

    async def _put_rounds(self, request: Any) -> None:
        """Put the rounds of one answer into the queue, others' rounds between them."""
        from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, FinishReason

        tokens, ended = self._tokens(request)
        rounds = [list(part) for part in self._service.cut(tokens)] or [[]]
        stats = self._prefill_stats(request.prompt_token_ids)
        for number, part in enumerate(rounds):
            last = number == len(rounds) - 1
            finish = (FinishReason.STOP if ended else FinishReason.LENGTH) if last else None
            output = EngineCoreOutput(request.request_id, part, finish_reason=finish, prefill_stats=stats)
            stats = None
            self._outputs.put_nowait(EngineCoreOutputs(outputs=[output]))
            await asyncio.sleep(self._service.pause_s)

    def _tokens(self, request: Any) -> tuple[list[int], bool]:
        """Return the answer's tokens as far as the request allows, and whether they end by themselves."""
        prompt, sampling = request.prompt_token_ids, request.sampling_params
        answer = self._service.script(ScriptedRequest(self.tokenizer.decode(prompt), prompt, sampling))
        ids = self.tokenizer.encode(answer, add_special_tokens=False) if isinstance(answer, str) else list(answer)
        ids.append(self.tokenizer.eos_token_id)
        return ids[: sampling.max_tokens], len(ids) <= sampling.max_tokens

    def _prefill_stats(self, prompt: list[int]) -> Any:
        from vllm.v1.metrics.stats import PrefillStats

        cached = max((_common_blocks(prompt, earlier) for earlier in self._prompts), default=0)
        self._prompts.append(prompt)
        return PrefillStats(num_prompt_tokens=len(prompt), num_cached_tokens=cached)


def _common_blocks(prompt: list[int], earlier: list[int]) -> int:
    same = next((i for i, (a, b) in enumerate(zip(prompt, earlier, strict=False)) if a != b), len(earlier))
    # The last token is always computed: its logits are needed.
    return min(same, len(prompt) - 1) // BLOCK * BLOCK
