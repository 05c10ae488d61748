# The commands of development, each one line. `make` alone lists them.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: help install check format test coverage proof bench rules build clean

help: ## List the commands
	@grep -E '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  \1\t/' | expand -t 14

install: $(BIN)/.installed ## Make .venv with everything that tests, proofs, lint and types need

$(BIN)/.installed: pyproject.toml .ci/constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]' --constraint .ci/constraints.txt
	@touch $@

check: install ## Lint, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: install ## Format, and mend what the linter can mend
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

test: install ## The round of minutes: unit, contract and acceptance tests
	$(BIN)/pytest -q -n auto

coverage: install ## The same, with the lines and branches that no test enters
	$(BIN)/pytest -q -n auto --cov --cov-branch --cov-report=term:skip-covered

proof: install ## What takes long or needs root: crashes, power cuts, a booted systemd, the frameworks' own suites
	$(BIN)/pytest -q -m "proof or hypothesis"

bench: install ## Our numbers beside the bare disk's
	$(BIN)/python -m benchmarks

rules: install ## Which rule of reliability and security is kept where, and which test holds it
	$(BIN)/python -m tests.rules

build: install ## The wheel and the source distribution, in dist/
	$(BIN)/python -m build
	$(BIN)/twine check --strict dist/*

clean: ## Remove what can be made again
	rm -rf .venv dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage
