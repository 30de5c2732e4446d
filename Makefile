# Two commands are enough: `make demo` and `make test`. Both create the environment first.
# `make test` runs all tests but those marked `long`, `make test-long` runs those.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.PHONY: demo test test-long lint types docs package reproduce-smoke clean

demo: $(READY)
	$(BIN)/lipgraft run quickstart

PYTEST := $(BIN)/python -m pytest --numprocesses auto --dist loadgroup --no-loadscope-reorder

test: $(READY)
	$(PYTEST) -m "not long"

test-long: $(READY)
	$(PYTEST) -m long

reproduce-smoke: $(READY)
	$(BIN)/lipgraft reproduce all --scale smoke

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

# Not --quiet: it would hide from --strict the warnings that it counts.
docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "build/site/index.html"

package: $(READY)
	$(BIN)/python .ci/package

$(READY): requirements.lock pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $@

clean:
	rm -rf $(VENV) runs build
