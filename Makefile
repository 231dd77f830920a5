# make train: set up and train DQN on CartPole-v1.  make test: set up and run the tests.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help setup train test test-slow test-dmc ray-installed ray-starts test-ray test-cpus test-margins test-kill test-fuzz reliability check format docs stubs golden learn learn-peers bench bench-quick bench-scale bench-checkpoints clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 20

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $(READY)

setup: $(READY)  ## create .venv and install the package into it

train: $(READY)  ## train DQN on CartPole-v1 and evaluate it
	$(BIN)/rl-training train --config dqn/cartpole

test: $(READY)  ## run the fast tests
	$(BIN)/python -m pytest -n 2 --dist worksteal

test-slow: $(READY)  ## run the slow tests
	$(BIN)/python -m pytest -n 2 -m slow

DMC := .venv-dmc
$(DMC)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(DMC)
	$(DMC)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dmc]' pytest
	touch $@

test-dmc: $(DMC)/.ready  ## run the DeepMind Control tests in a separate virtual environment
	MUJOCO_GL=egl $(DMC)/bin/python -m pytest tests/test_dm_control.py

RAY_READY := $(VENV)/.ray-ready
$(RAY_READY): $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,ray]'
	touch $@

ray-installed: $(RAY_READY)  ## install Ray into .venv

RAY_STARTS := from contextlib import ExitStack as S; from rl_training.runtime.ray_cluster import connected as c
ray-starts: $(RAY_READY)  ## can Ray be started on this machine?
	$(BIN)/python -c "$(RAY_STARTS); s = S(); s.enter_context(c(None, num_cpus=1)); s.close()"

test-ray: $(RAY_READY)  ## run the tests of one Ray instance; those of clusters and of every algorithm are among the slow ones
	$(BIN)/python -m pytest -m slow tests/test_ray.py

RELIABILITY := PYTHONPATH=src:tests $(BIN)/python -m reliability
test-cpus: $(READY)  ## run the fast tests as other CPUs compute them (an hour)
	$(RELIABILITY).cpus

test-margins: $(READY)  ## measure the tests that learn over 20 seeds
	$(RELIABILITY).margins --seeds 20
	$(RELIABILITY).margins --seeds 20 --narrow

N ?= 50
test-kill: $(READY)  ## kill N more runs and compare what they end with
	$(RELIABILITY).kills --kills $(N)

test-fuzz: $(READY)  ## try N more examples of bad words, files and environments
	$(RELIABILITY).fuzz --examples $(N)

reliability: $(READY)  ## write the figures of these four into docs/reliability.md
	$(RELIABILITY).page

check: $(READY)  ## check linting, formatting, types, import layers and the documentation site
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -m slow tests/test_typed_seams.py
	$(BIN)/lint-imports
	$(MAKE) --no-print-directory docs

format: $(READY)  ## format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

stubs: $(READY)  ## write the signatures of all agents for editors, and the README's tables
	PYTHONPATH=tests $(BIN)/python tests/make_stubs.py

golden: $(READY)  ## write the golden runs of a new release into tests/golden
	PYTHONPATH=tests $(BIN)/python tests/make_golden.py

docs: $(READY)  ## build the documentation site into build/docs; warnings and broken links are errors
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs build/docs

BENCH_READY := $(VENV)/.bench-ready
$(BENCH_READY): $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[peers]'
	touch $(BENCH_READY)

learn: $(BENCH_READY)  ## train the packaged configs and compare them with published figures
	$(BIN)/rl-training bench

learn-peers: $(BENCH_READY)  ## compare with Stable-Baselines3 and sb3-contrib, and race them to solve tasks
	$(BIN)/rl-training bench --peers
	$(BIN)/rl-training bench --time-to-solve

bench: $(BENCH_READY)  ## measure speed against the peers and update docs/benchmarks.md
	$(BIN)/python benchmarks/speed.py

bench-quick: $(BENCH_READY)  ## measure a subset in under five minutes and only print it
	$(BIN)/python benchmarks/speed.py --quick

bench-scale: $(BENCH_READY)  ## measure what collectors cost the learner and update docs/scale.md
	$(BIN)/python benchmarks/scale.py

bench-checkpoints: $(BENCH_READY)  ## measure what saving a large replay costs and update docs/benchmarks.md
	$(BIN)/python benchmarks/checkpoints.py

clean:  ## remove everything that make has created
	rm -rf $(VENV) $(DMC) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
