"""The embedded engine: vLLM's AsyncLLM and OpenAI serving objects on a loop thread of their own.

``get_engine(config)`` returns the one :class:`EngineService` of a configuration in this process; it starts at
first use. Requests and answers are OpenAI chat dicts, with vLLM's extra fields at the top level; the answer
(or the last chunk of a stream) carries ``whiflash``, the figures of its rounds.
"""

from whiflash_engine.service.engine import EngineService, close_all, get_engine

__all__ = ["EngineService", "close_all", "get_engine"]
