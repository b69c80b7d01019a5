"""WhiFlash on vLLM: two drafters beside one target, and a router that picks one of them every round.

The public face of the engine is small; the other two packages import from these modules only:

- :mod:`whiflash_engine.config`: :class:`~whiflash_engine.config.WhiFlashConfig`, what to run and how to route;
- :mod:`whiflash_engine.errors`: every error a user can mend, with the way out in its text;
- :mod:`whiflash_engine.service`: the embedded engine (starts vLLM, answers OpenAI requests, hands out traces);
- :mod:`whiflash_engine.trace`: one record per request and round, and their summaries;
- :mod:`whiflash_engine.segments`: which part of an answer (JSON, diff, code, ...) a round belongs to.
"""

__version__ = "0.1.0"
