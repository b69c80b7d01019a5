"""Coding agents on an embedded vLLM engine that routes each round to an EAGLE-3 or a DFlash drafter.

``ChatWhiFlash`` is the LangChain chat model. Importing this package starts nothing and does not load vLLM.
"""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("whiflash-agent")
except PackageNotFoundError:  # run from a source tree that is not installed
    __version__ = "0.0.0"

from whiflash_agent.chat_models import ChatWhiFlash

__all__ = ["ChatWhiFlash", "__version__"]
