# make train: set up and train DQN on CartPole-v1.  make test: set up and run the tests.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help setup train test test-slow check format learn bench clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $(READY)

setup: $(READY)  ## make .venv and install the package into it

train: $(READY)  ## train DQN on CartPole-v1 and evaluate it
	$(BIN)/rl-training train --config dqn/cartpole

test: $(READY)  ## run the fast tests
	$(BIN)/python -m pytest -n 2

test-slow: $(READY)  ## run the tests that take long
	$(BIN)/python -m pytest -n 2 -m slow

check: $(READY)  ## lint, format, types, layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(READY)  ## put the code into the project's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

learn: $(READY)  ## train the packaged configs and hold them against published figures
	$(BIN)/python benchmarks/learning.py

bench: $(READY)  ## measure speed against the peers
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench]'
	$(BIN)/python benchmarks/speed.py --report

clean:  ## remove what make has made
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
