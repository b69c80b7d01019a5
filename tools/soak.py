"""Soak: many short requests of mixed routers through one engine; acceptance and memory must stay level.

``python tools/soak.py --requests 500``. Prints acceptance and the core's resident memory per hundred requests;
exit code 1 if the last hundred differ from the first.
"""

import asyncio
from typing import Annotated, Any

import typer

from whiflash_engine.config import EngineConfig
from whiflash_engine.service import get_engine

ROUTERS = ("eagle3", "dflash", "ngram", "entropy", "cost", "off")
TOPICS = ("bread", "rivers", "a stack in Python", "a letter to a friend", "JSON with two keys", "how to test code")
WINDOW = 100
CONCURRENCY = 4
ACCEPTANCE_DRIFT = 0.05
MEMORY_DRIFT_MB = 150.0


def body(number: int) -> dict[str, Any]:
    """Return request ``number``: every window of a hundred asks the same of the same routers."""
    place = number % WINDOW
    return {
        "messages": [
            {"role": "user", "content": f"Write two lines about {TOPICS[place % len(TOPICS)]}, part {place}."}
        ],
        "temperature": 0,
        "max_tokens": 24,
        "cache_salt": f"soak-{number}",
        "vllm_xargs": {"whiflash_router": ROUTERS[place % len(ROUTERS)]},
    }


async def ask_all(engine: Any, first: int, count: int) -> float:
    """Return the mean acceptance length of drafted rounds over some requests."""
    slots = asyncio.Semaphore(CONCURRENCY)

    async def ask(number: int) -> dict[str, Any]:
        async with slots:
            answer: dict[str, Any] = (await engine.achat(body(number)))["whiflash"]
            return answer

    answers = await asyncio.gather(*(ask(number) for number in range(first, first + count)))
    drafted = [part for answer in answers for name, part in answer["by_drafter"].items() if name != "none"]
    rounds = sum(int(part["rounds"]) for part in drafted)
    return 1 + sum(int(part["accepted"]) for part in drafted) / max(rounds, 1)


def main(requests: Annotated[int, typer.Option(min=2 * WINDOW, help="Requests in all.")] = 500) -> None:
    """Run the soak."""
    engine = get_engine(EngineConfig())
    engine.start()
    lengths, memory = [], []
    for first in range(0, requests - WINDOW + 1, WINDOW):
        lengths.append(asyncio.run(ask_all(engine, first, WINDOW)))
        memory.append(engine.describe()["memory_mb"]["resident"])
        typer.echo(f"{first + WINDOW} requests: acceptance length {lengths[-1]:.3f}, core {memory[-1]:.0f} MB")
    engine.close()
    level = abs(lengths[-1] / lengths[0] - 1) <= ACCEPTANCE_DRIFT and memory[-1] - memory[0] <= MEMORY_DRIFT_MB
    typer.echo("level" if level else "NOT level")
    raise typer.Exit(0 if level else 1)


if __name__ == "__main__":
    typer.run(main)
