"""Errors that a user can mend: each text names the thing, its value and the way out.

Command lines print them as one line and exit with code 2; ``ChatWhiFlash`` maps them to LangChain's errors.
"""


class WhiFlashError(Exception):
    """Base of all errors raised on purpose by this project."""


class ConfigError(WhiFlashError, ValueError):
    """A setting has a value that cannot work (unknown router, unknown model name, ...)."""


class CheckpointError(WhiFlashError):
    """A model, drafter or router file is missing, damaged, or does not fit the target."""


class EngineError(WhiFlashError):
    """The embedded engine could not be started, or died; the next call starts a new one."""


class RequestError(WhiFlashError):
    """The engine refused one request. ``status`` is the HTTP status that a server would send."""

    def __init__(self, message: str, *, status: int = 400, kind: str = "BadRequestError") -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind


class ContextLengthError(RequestError):
    """Prompt plus requested output do not fit the target's context window. Nothing is cut silently."""
