"""A background event loop, and how callers cross over to it from any thread or loop."""

import asyncio
import queue
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import CancelledError as FutureCancelledError
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from whiflash_engine.errors import EngineError

T = TypeVar("T")
_END = object()
CLOSED = "the engine was closed while this request ran: call again, it starts anew"


class LoopThread:
    """One daemon thread that runs one event loop until :meth:`stop`."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._lock = threading.Lock()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        # Processes started from this thread inherit its mask: Ctrl-C in a terminal goes to every process of the
        # group, and an engine core that dies of it would take the request at hand with it.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        self.loop.run_forever()

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> "Future[T]":
        """Start a coroutine on the loop; cancelling the future cancels it. EngineError once it is closing."""
        with self._lock:
            if self._closing:
                coroutine.close()
                raise EngineError(CLOSED)
            return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait for it; an interrupt of the wait cancels it."""
        future = self.submit(coroutine)
        try:
            with self._closed_as_error():
                return future.result()
        except BaseException:
            future.cancel()
            raise

    async def arun(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop from another loop; cancelling the caller cancels it."""
        with self._closed_as_error():
            return await asyncio.wrap_future(self.submit(coroutine))

    def iterate(self, make: Callable[[], AsyncIterator[T]], timeout: float | None = None) -> Iterator[T]:
        """Yield the items of an async iterator made on the loop; closing the iterator cancels it.

        Raises TimeoutError if the last item has not come within ``timeout`` seconds.
        """
        items: queue.SimpleQueue[Any] = queue.SimpleQueue()
        deadline = None if timeout is None else time.monotonic() + timeout
        future = self.submit(_pump(make, items.put))
        try:
            while (item := _next_item(items, deadline)) is not _END:
                yield item
            with self._closed_as_error():
                future.result()
        finally:
            future.cancel()

    async def aiterate(self, make: Callable[[], AsyncIterator[T]]) -> AsyncIterator[T]:
        """Like :meth:`iterate`, for callers on another event loop."""
        items: asyncio.Queue[Any] = asyncio.Queue()
        here = asyncio.get_running_loop()
        future = self.submit(_pump(make, lambda item: _put_from_afar(here, items, item)))
        try:
            while (item := await items.get()) is not _END:
                yield item
            with self._closed_as_error():
                await asyncio.wrap_future(future)
        finally:
            future.cancel()

    def cancel_all(self) -> None:
        """Take no more work, cancel every task and wait until they have ended, ten seconds at most."""
        with self._lock:
            self._closing = True
        with suppress(TimeoutError):
            asyncio.run_coroutine_threadsafe(_cancel_all(), self.loop).result(timeout=10)

    def stop(self) -> None:
        """Cancel what still runs, stop the loop and wait for the thread; a loop that hangs is left behind."""
        if self._thread is threading.current_thread() or not self._thread.is_alive():
            return
        self.cancel_all()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(timeout=10)
        if not self._thread.is_alive():
            self.loop.close()

    @contextmanager
    def _closed_as_error(self) -> Iterator[None]:
        """Turn a cancellation that nobody but our closing asked for into :class:`EngineError`."""
        try:
            yield
        except (asyncio.CancelledError, FutureCancelledError) as error:
            task = _current_task()
            if not self._closing or (task is not None and task.cancelling()):
                raise
            raise EngineError(CLOSED) from error


async def _pump(make: Callable[[], AsyncIterator[T]], put: Callable[[Any], None]) -> None:
    try:
        async for item in make():
            put(item)
    finally:
        put(_END)


def _next_item(items: "queue.SimpleQueue[Any]", deadline: float | None) -> Any:
    try:
        return items.get(timeout=None if deadline is None else max(deadline - time.monotonic(), 0.0))
    except queue.Empty:
        raise TimeoutError("no whole answer in time") from None


def _put_from_afar(loop: asyncio.AbstractEventLoop, items: "asyncio.Queue[Any]", item: Any) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(items.put_nowait, item)


def _current_task() -> "asyncio.Task[Any] | None":
    try:
        return asyncio.current_task()
    except RuntimeError:  # no loop runs in this thread
        return None


async def _cancel_all() -> None:
    tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
