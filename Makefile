# Two commands are enough: `make demo` and `make test`. Both create the environment first.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.PHONY: demo test lint types docs package reproduce-smoke clean

demo: $(READY)
	$(BIN)/lipgraft run quickstart

test: $(READY)
	$(BIN)/python -m pytest --numprocesses auto --dist loadgroup

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
