# Everything runs in $(VENV); `make setup` makes it and the other targets call for it.
PYTHON ?= $(shell python3.11 -c '' 2>/dev/null && echo python3.11 || echo python3)
VENV ?= .venv
EXTRAS ?= cpu,swebench,dev
BIN := $(VENV)/bin

.PHONY: setup demo test bench lint clean

setup: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml tools/setup_env.py
	$(PYTHON) tools/setup_env.py --venv $(VENV) --extras $(EXTRAS)
	@touch $@

# An agent works on the bundled task; then its patch is graded and a summary printed.
demo: setup
	$(BIN)/python -m whiflash_agent.swebench demo

# All arms, oracles, stock vLLM and long prompts: about 40 minutes on two cores, by estimate. `bench --quick` takes seven.
bench: setup
	$(BIN)/python -m whiflash_agent.bench --json bench.json --html bench.html

test: lint
	@echo "== pytest"
	@$(BIN)/python -m pytest

lint: setup
	@echo "== ruff check"
	@$(BIN)/ruff check .
	@echo "== ruff format --check"
	@$(BIN)/ruff format --check .
	@echo "== mypy"
	@$(BIN)/mypy
	@echo "== lint-imports"
	@$(BIN)/lint-imports

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache dist
