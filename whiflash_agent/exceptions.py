"""From the engine's and the client library's errors to LangChain's.

======================================================  ===========================================
raised below                                            what the caller of ``ChatWhiFlash`` sees
======================================================  ===========================================
``ContextLengthError``, HTTP 400 about context length   ``ContextOverflowError``
``RequestError`` by status, ``openai.APIStatusError``   ``ModelInvalidRequestError``, ``ModelNotFoundError``
``EngineError``                                         ``ModelConnectionError`` (retryable)
``openai.APIConnectionError``                           ``ModelConnectionError`` (retryable)
``TimeoutError``, ``openai.APITimeoutError``            ``ModelTimeoutError`` (retryable)
``ConfigError``, ``CheckpointError``                    the same: a setting must be mended, no retry helps
======================================================  ===========================================

The original error is always the ``__cause__``.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import openai
from langchain_core.exceptions import (
    ContextOverflowError,
    ModelAPIError,
    ModelAuthenticationError,
    ModelConnectionError,
    ModelError,
    ModelInvalidRequestError,
    ModelNotFoundError,
    ModelPermissionDeniedError,
    ModelRateLimitError,
    ModelTimeoutError,
)

from whiflash_engine.errors import ContextLengthError, EngineError, RequestError

_BY_STATUS: dict[int, type[ModelError]] = {
    401: ModelAuthenticationError,
    403: ModelPermissionDeniedError,
    404: ModelNotFoundError,
    408: ModelTimeoutError,
    429: ModelRateLimitError,
    504: ModelTimeoutError,
}
_CONTEXT_WORDS = (
    "context length",
    "context_length",
    "context window",
    "maximum model length",
    "max_model_len",
)


_TEMPLATE_WORDS = re.compile(
    r"roles? (must|should) alternate|alternate user/assistant|system (role|message)s? .*(support|beginning|first)",
    re.IGNORECASE,
)
"""How chat templates refuse repeated roles and system messages that come late."""


def _names_context_length(text: str) -> bool:
    lowered = text.lower()
    return any(words in lowered for words in _CONTEXT_WORDS)


def from_status(status: int, text: str) -> ModelError:
    """Return LangChain's error for an HTTP status and the server's words."""
    if status in (400, 413) and _names_context_length(text):
        return ContextOverflowError(text)
    if status == 400 and _TEMPLATE_WORDS.search(text):
        return ModelInvalidRequestError(f"{text} (the chat template wants strict turns: pass merge_roles=True)")
    if status in _BY_STATUS:
        return _BY_STATUS[status](text)
    return ModelAPIError(text) if status >= 500 else ModelInvalidRequestError(text)


def to_langchain(error: Exception) -> ModelError | None:
    """Return LangChain's error for ``error``, or ``None`` if it must stay what it is."""
    if isinstance(error, ContextLengthError):
        return ContextOverflowError(str(error))
    if isinstance(error, RequestError):
        return from_status(error.status, str(error))
    if isinstance(error, EngineError):
        return ModelConnectionError(str(error))
    if isinstance(error, openai.APITimeoutError | TimeoutError):
        return ModelTimeoutError(str(error) or "the request timed out")
    if isinstance(error, openai.APIConnectionError):
        return ModelConnectionError(f"{error} {error.__cause__ or ''}".strip())
    if isinstance(error, openai.APIStatusError):
        return from_status(error.status_code, str(error))
    if isinstance(error, openai.APIError):  # an error event in the middle of a stream
        return ContextOverflowError(str(error)) if _names_context_length(str(error)) else ModelAPIError(str(error))
    return None


@contextmanager
def langchain_errors() -> Iterator[None]:
    """Turn the errors raised inside into LangChain's, keeping the original as the cause."""
    try:
        yield
    except Exception as error:
        mapped = to_langchain(error)
        if mapped is None:
            raise
        raise mapped from error
