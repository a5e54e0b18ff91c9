# Two commands do everything on a fresh machine: make demo, make test. Each builds .venv first.
PYTHON ?= python3
BIN := .venv/bin
# The peers of the benchmarks and what they need, without the torchvision that their metadata ask for.
PEERS := curvlinops-for-pytorch backpack-for-pytorch unfoldNd einconv linear_operator opt_einsum einops tqdm
PEERS += laplace-torch asdfghjkl torchmetrics lightning-utilities

.PHONY: demo test test-all library bench docs lint release clean

demo: .venv/installed
	$(BIN)/symbayes demo --out report.html

# The library. The linters, most of whose time is that of mypy on one core, run beside the tests.
test: .venv/installed
	$(MAKE) --jobs=2 lint library

# Tests go to processes in runs of neighbours, which share what they train.
library: .venv/installed
	$(BIN)/python -m pytest -n auto --dist worksteal

# The library with the shapes of every call and all random networks, and what is built on it: tables, demos and pictures of
# the papers.
test-all: .venv/installed lint
	CHECKED_CALLS=inf RANDOM_NETWORKS=1000 $(BIN)/python -m pytest -n auto --dist worksteal tests papers/tests

lint: .venv/installed
	$(BIN)/ruff check conftest.py docs/hooks.py symbayes papers tests benchmarks
	$(BIN)/ruff format --check conftest.py docs/hooks.py symbayes papers tests benchmarks
	$(BIN)/mypy
	$(BIN)/lint-imports

# The site, from docs/ and docstrings; a warning, such as a link that leads nowhere, is an error.
docs: .venv/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "site/index.html"

bench: .venv/peers
	$(BIN)/python -m benchmarks --out benchmarks.json

# Wheel and sdist of the last commit, in dist; built twice, and compared.
release: .venv/installed
	$(BIN)/python -m tests.release --out dist

# torch first and on its own: its pinned version is a CPU build where one is to be had, and nothing may ask for another.
.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt setuptools
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-build-isolation -e ".[test]"
	touch $@

.venv/peers: .venv/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps $(PEERS)
	touch $@

.venv/docs: .venv/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-build-isolation -e ".[docs]"
	touch $@

clean:
	rm -rf .venv site dist report.html benchmarks.json
