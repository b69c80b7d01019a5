"""The remote backend against an HTTP server, the embedded one against a service double. No engine runs."""

import asyncio
import json
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import ModuleType
from typing import Any

import pytest
from langchain_core.exceptions import (
    ContextOverflowError,
    ModelAPIError,
    ModelAuthenticationError,
    ModelConnectionError,
    ModelNotFoundError,
    ModelTimeoutError,
)
from langchain_core.messages import HumanMessage

from whiflash_agent import ChatWhiFlash
from whiflash_agent.testing import FIGURES, answer, call, to_chunks
from whiflash_engine.service.loop import LoopThread

ANSWER = answer("Grüße", reasoning="hm", calls=[call("now", "")])


class Server(ThreadingHTTPServer):
    """Answers like vLLM's server and keeps what it was asked."""

    status = 200
    error = ""
    asked: list[tuple[str, dict[str, Any]]]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        card = {"id": "served", "object": "model", "created": 0, "owned_by": "vllm", "max_model_len": 4096}
        self._send({"object": "list", "data": [card]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.asked.append((self.path, body))
        if self.server.status != 200:
            self._send({"error": {"message": self.server.error, "type": "x", "code": self.server.status}})
        elif self.path == "/tokenize":
            self._send({"count": 17, "max_model_len": 4096, "tokens": [5, 6]})
        elif body.get("stream"):
            lines = [f"data: {json.dumps(chunk)}\n\n" for chunk in to_chunks(ANSWER)]
            self._send_text("".join([*lines, "data: [DONE]\n\n"]), "text/event-stream")
        else:
            self._send(ANSWER)

    def _send(self, body: dict[str, Any]) -> None:
        self._send_text(json.dumps(body), "application/json")

    def _send_text(self, text: str, kind: str) -> None:
        self.send_response(self.server.status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(("127.0.0.1", 0), Handler) as http:
        http.asked = []
        thread = threading.Thread(target=http.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield http
        http.shutdown()
        thread.join()


async def test_remote_answers_as_the_engine_does(server: Server) -> None:
    model = ChatWhiFlash(base_url=server.url, router="eagle3", trace=True)
    first, *rest = [chunk async for chunk in model.astream("q")]
    streamed, *others = model.stream("q")
    for message in (
        model.invoke("q", top_k=3),
        await model.ainvoke("q"),
        sum(rest, first),
        sum(others, streamed),
    ):
        assert message.content == "Grüße"
        assert message.additional_kwargs["reasoning_content"] == "hm"
        assert [(made["name"], made["args"]) for made in message.tool_calls] == [("now", {})]
        assert message.response_metadata["whiflash"] == FIGURES
        assert message.usage_metadata and message.usage_metadata["input_token_details"] == {"cache_read": 16}
    path, body = server.asked[2]
    assert path == "/v1/chat/completions"
    assert body == {
        "model": "served",
        "messages": [{"role": "user", "content": "q"}],
        "top_k": 3,
        "vllm_xargs": {"whiflash_router": "eagle3"},
        "whiflash_trace": True,
    }


def test_remote_counts_tokens_and_knows_its_window(server: Server) -> None:
    model = ChatWhiFlash(base_url=server.url)
    assert model.get_num_tokens_from_messages([HumanMessage("q")]) == 17
    assert server.asked == [("/tokenize", {"model": "served", "messages": [{"role": "user", "content": "q"}]})]
    assert model.get_token_ids("two words") == [5, 6]
    assert server.asked[1][1] == {"model": "served", "prompt": "two words", "add_special_tokens": False}
    assert model.context_window() == 4096
    assert ChatWhiFlash(base_url=server.url, model="served").context_window() == 4096
    with pytest.raises(ModelNotFoundError, match="other"):
        ChatWhiFlash(base_url=server.url, model="other").context_window()


def test_remote_sends_the_name_it_was_given(server: Server) -> None:
    model = ChatWhiFlash(base_url=server.url, model="mine")
    model.invoke("q")
    model.invoke("q", model="lora")
    assert [body["model"] for _, body in server.asked] == ["mine", "lora"]


@pytest.mark.parametrize(
    ("status", "text", "seen"),
    [
        (400, "This model's maximum context length is 4096 tokens.", ContextOverflowError),
        (401, "no", ModelAuthenticationError),
        (404, "The model `x` does not exist.", ModelNotFoundError),
        (500, "broken", ModelAPIError),
    ],
)
async def test_remote_errors(server: Server, status: int, text: str, seen: type[Exception]) -> None:
    server.status, server.error = status, text
    model = ChatWhiFlash(base_url=server.url, model="x", max_retries=0)
    with pytest.raises(seen, match=text[:10]):
        model.invoke("q")
    with pytest.raises(seen):
        await model.ainvoke("q")
    with pytest.raises(seen):
        list(model.stream("q"))
    with pytest.raises(seen):
        [_ async for _ in model.astream("q")]


def test_remote_out_of_reach() -> None:
    with pytest.raises(ModelConnectionError):
        ChatWhiFlash(base_url="http://127.0.0.1:9/v1", model="x", max_retries=0).invoke("q")


class Service:
    """Stands where ``whiflash_engine.service`` gives an engine."""

    max_model_len = 1024

    def __init__(self, config: Any) -> None:
        self.config = config
        self.pause = 0.0
        self.cancelled = 0
        self.closed = 0

    def chat(self, body: dict[str, Any]) -> dict[str, Any]:
        return ANSWER

    async def achat(self, body: dict[str, Any]) -> dict[str, Any]:
        try:
            await asyncio.sleep(self.pause)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return ANSWER

    def stream(self, body: dict[str, Any], timeout: float | None = None) -> Iterator[dict[str, Any]]:
        assert body["stream"] is True
        thread = LoopThread("test-service")
        try:
            yield from thread.iterate(lambda: self.astream(body), timeout)
        finally:
            thread.stop()

    async def astream(self, body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        for chunk in to_chunks(ANSWER):
            await asyncio.sleep(self.pause)
            yield chunk

    def count_tokens(self, body: dict[str, Any]) -> int:
        return 5

    def tokenize(self, text: str) -> list[int]:
        return [1, 2]

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def services(monkeypatch: pytest.MonkeyPatch) -> list[Service]:
    made: list[Service] = []

    def get_engine(config: Any) -> Service:
        found = next((service for service in made if service.config == config), None)
        if found is None:
            made.append(found := Service(config))
        return found

    module = ModuleType("whiflash_engine.service")
    monkeypatch.setattr(module, "get_engine", get_engine, raising=False)
    monkeypatch.setitem(sys.modules, "whiflash_engine.service", module)
    return made


async def test_embedded_starts_at_first_use_and_is_shared_by_routers(services: list[Service]) -> None:
    models = [
        ChatWhiFlash(router=router, temperature=t) for router, t in (("eagle3", 0.0), ("off", 1.0), (None, 0.5))
    ]
    assert services == []
    for model in models:
        assert model.invoke("q").content == (await model.ainvoke("q")).content == "Grüße"
        assert [c.content for c in model.stream("q")] == [c.content async for c in model.astream("q")]
    assert len(services) == 1
    ChatWhiFlash(eagle3_tokens=2).invoke("q")
    assert [service.config.whiflash.eagle3_tokens for service in services] == [4, 2]
    assert models[0].context_window() == 1024
    assert models[0].get_num_tokens_from_messages([HumanMessage("q")]) == 5
    assert models[0].get_num_tokens("q") == 2


async def test_embedded_timeout_cancels_the_request(services: list[Service]) -> None:
    model = ChatWhiFlash(timeout=0.05)
    model.invoke("q")
    services[0].pause = 30
    with pytest.raises(ModelTimeoutError):
        model.invoke("q")
    with pytest.raises(ModelTimeoutError):
        await model.ainvoke("q")
    assert services[0].cancelled == 2
    with pytest.raises(ModelTimeoutError):
        [_ async for _ in model.astream("q")]
    with pytest.raises(ModelTimeoutError, match="in time"):
        list(model.stream("q"))


def test_closing_an_unused_model_starts_nothing(services: list[Service]) -> None:
    ChatWhiFlash().close()
    assert services == []
    with ChatWhiFlash() as model:
        model.invoke("q")
    assert services[0].closed == 1
