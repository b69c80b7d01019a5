"""A background event loop, and how callers cross over to it from any thread or loop."""

import asyncio
import queue
import signal
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")
_END = object()


class LoopThread:
    """One daemon thread that runs one event loop until :meth:`stop`."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        # Processes started from this thread inherit its mask: Ctrl-C in a terminal goes to every process of the
        # group, and an engine core that dies of it would take the request at hand with it.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        self.loop.run_forever()

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> "Future[T]":
        """Start a coroutine on the loop; cancelling the future cancels it."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait for it; an interrupt of the wait cancels it."""
        future = self.submit(coroutine)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    async def arun(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop from another loop; cancelling the caller cancels it."""
        return await asyncio.wrap_future(self.submit(coroutine))

    def iterate(self, make: Callable[[], AsyncIterator[T]]) -> Iterator[T]:
        """Yield the items of an async iterator made on the loop; closing the iterator cancels it."""
        items: queue.SimpleQueue[Any] = queue.SimpleQueue()
        future = self.submit(_pump(make, items.put))
        try:
            while (item := items.get()) is not _END:
                yield item
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
            await asyncio.wrap_future(future)
        finally:
            future.cancel()

    def cancel_all(self) -> None:
        """Cancel every task on the loop and wait until they have ended."""
        self.submit(_cancel_all()).result(timeout=10)

    def stop(self) -> None:
        """Cancel what still runs, stop the loop and wait for the thread."""
        if self._thread is threading.current_thread() or not self._thread.is_alive():
            return
        self.cancel_all()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(timeout=10)
        self.loop.close()


async def _pump(make: Callable[[], AsyncIterator[T]], put: Callable[[Any], None]) -> None:
    try:
        async for item in make():
            put(item)
    finally:
        put(_END)


def _put_from_afar(loop: asyncio.AbstractEventLoop, items: "asyncio.Queue[Any]", item: Any) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(items.put_nowait, item)


async def _cancel_all() -> None:
    tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
