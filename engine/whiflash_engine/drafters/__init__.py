"""Drafters: one file each, behind one protocol."""

from whiflash_engine.drafters.base import ContextRows, Drafter, RoundBatch

__all__ = ["ContextRows", "Drafter", "RoundBatch"]
