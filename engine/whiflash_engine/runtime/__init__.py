"""The only files that subclass vLLM: one thin file per vLLM class."""
