"""Callers cross over to the engine's loop from threads and from other loops; leaving early cancels."""

import asyncio
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from whiflash_engine.errors import EngineError
from whiflash_engine.service.loop import LoopThread


@pytest.fixture
def thread() -> Iterator[LoopThread]:
    loop_thread = LoopThread("test-loop")
    yield loop_thread
    loop_thread.stop()


def counting(ended: threading.Event, fail_at: int | None = None) -> AsyncIterator[int]:
    async def items() -> AsyncIterator[int]:
        try:
            number = 0
            while True:
                if number == fail_at:
                    raise ValueError("broken")
                yield number
                number += 1
                await asyncio.sleep(0.001)
        finally:
            ended.set()

    return items()


def test_run_returns_and_raises(thread: LoopThread) -> None:
    async def answer() -> int:
        return 42

    async def broken() -> int:
        raise KeyError("nothing")

    assert thread.run(answer()) == 42
    with pytest.raises(KeyError, match="nothing"):
        thread.run(broken())


def test_leaving_a_stream_early_ends_it(thread: LoopThread) -> None:
    ended = threading.Event()
    stream = thread.iterate(lambda: counting(ended))
    assert [next(stream) for _ in range(3)] == [0, 1, 2]
    stream.close()  # type: ignore[attr-defined]
    assert ended.wait(5)


def test_a_streams_error_reaches_its_reader(thread: LoopThread) -> None:
    ended = threading.Event()
    seen = []
    with pytest.raises(ValueError, match="broken"):
        for item in thread.iterate(lambda: counting(ended, fail_at=2)):
            seen.append(item)
    assert seen == [0, 1]


async def test_from_another_loop(thread: LoopThread) -> None:
    ended = threading.Event()
    stream = thread.aiterate(lambda: counting(ended))
    assert [await anext(stream) for _ in range(3)] == [0, 1, 2]
    await stream.aclose()  # type: ignore[attr-defined]
    assert await asyncio.to_thread(ended.wait, 5)

    with pytest.raises(ValueError, match="broken"):
        async for _ in thread.aiterate(lambda: counting(ended, fail_at=1)):
            pass


async def test_cancelling_a_caller_cancels_its_work(thread: LoopThread) -> None:
    ended = threading.Event()

    async def endless() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    task = asyncio.create_task(thread.arun(endless()))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await asyncio.to_thread(ended.wait, 5)


def test_stop_ends_the_thread_and_what_runs() -> None:
    loop_thread = LoopThread("test-stop")
    ended = threading.Event()
    stream = loop_thread.iterate(lambda: counting(ended))
    next(stream)
    loop_thread.stop()
    assert ended.is_set()
    assert "test-stop" not in [thread.name for thread in threading.enumerate()]


def test_processes_started_from_the_loop_do_not_get_ctrl_c(thread: LoopThread) -> None:
    """A process that the loop's thread starts has SIGINT blocked."""
    code = "import signal; print(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, []))"

    async def start() -> str:
        return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip()

    assert thread.run(start()) == "True"
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_closing_is_told_to_everyone_who_waits() -> None:
    loop_thread = LoopThread("test-closing")
    seen: list[BaseException] = []

    def wait() -> None:
        try:
            loop_thread.run(asyncio.sleep(60))
        except BaseException as error:
            seen.append(error)

    async def wait_on_another_loop() -> None:
        await loop_thread.arun(asyncio.sleep(60))

    waiting = threading.Thread(target=wait)
    waiting.start()
    other = threading.Thread(target=lambda: seen.append(_raised(lambda: asyncio.run(wait_on_another_loop()))))
    other.start()
    time.sleep(0.2)
    loop_thread.stop()
    waiting.join(5)
    other.join(5)
    assert [type(error) for error in seen] == [EngineError, EngineError]
    with pytest.raises(EngineError, match="call again"):
        loop_thread.run(asyncio.sleep(0))


def _raised(call: Callable[[], object]) -> BaseException:
    try:
        call()
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")
