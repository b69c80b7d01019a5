"""Which files make a target with its drafters, and whether they fit together.

- :mod:`.registry`: a :class:`~whiflash_engine.config.WhiFlashConfig` becomes paths and Hub names;
- :mod:`.embedded`: the default target, converted once from a file inside a Python package;
- :mod:`.formats`: what the public checkpoint formats say about themselves, read without torch;
- :mod:`.validate`: drafters against target, before the engine starts.

Nothing here imports vLLM, and torch only inside the conversion.
"""
