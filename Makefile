# make run: sets up and opens the app.  make test: sets up everything and runs the tests.
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
PORT ?= 8501
PIP := $(BIN)/python -m pip --disable-pip-version-check install -q -c constraints.txt

.PHONY: run test check bench zoo probe clean

run: $(VENV)/base.done
	$(BIN)/advisor ui --port $(PORT)

test: $(VENV)/dev.done
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

check: $(VENV)/dev.done
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

bench: $(VENV)/dev.done
	ADVISOR_QUIET=1 ADVISOR_FUZZ=100000 ADVISOR_SNAPSHOT_MB=500 ADVISOR_PLANS=1000 $(BIN)/python -m pytest tests/bench -o addopts= --timeout=7200

zoo: $(VENV)/dev.done
	$(BIN)/python -m tests.simulation.zoo

probe: $(VENV)/base.done
	$(PIP) -e '.[probe]'

clean:
	rm -rf $(VENV) dist build .pytest_cache .mypy_cache .ruff_cache

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Python 3.11 or newer is needed, this is " + sys.version.split()[0] + "; choose another with: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/base.done: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) -e .
	@touch $@

$(VENV)/dev.done: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) -e '.[dev]'
	@touch $@ $(VENV)/base.done
