"""Bench: every arm (a router, or no speculation) on the same requests, in one engine process, interleaved.

``workloads`` holds the prompts, ``runner`` sends them and keeps the times, ``figures`` makes numbers of them
(pure functions), ``console`` and ``html`` show the numbers, ``examples`` keeps some whole answers for the page,
``command`` ties them together for the command line.

How it measures: temperature 0; the order of the arms is shuffled anew for every request (for every group of
requests if several run at once), from the seed; every request has a cache salt of its own, so that the prefix
cache is cold for all arms alike; before that, every arm runs once on prompts that are not measured. A tool
schema's grammar is compiled by whichever arm meets it first, and that arm's time to the first token has it.

Oracles come from a survey of every request that is run after the timed ones.
"""
