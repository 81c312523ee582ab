# make demo    install into .venv and train the quickstart: under a minute after installation
# make test    install what the tests need and run them all but the slow ones
# make lint    formatting, lint and types
# make check   all that a change must pass

PYTHON ?= python3

.PHONY: demo test slow lint check

demo: .venv/installed
	.venv/bin/fedlens run quickstart

test: .venv/tested
	.venv/bin/pytest

slow: .venv/tested
	.venv/bin/pytest -m slow

lint: .venv/tested
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy

check: lint test

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		(echo "fedlens needs Python 3.11 or newer; name one: make PYTHON=python3.12 …" && exit 1)
	$(PYTHON) -m venv .venv

.venv/installed: pyproject.toml | .venv/bin/python
	.venv/bin/pip install --quiet -e .
	@touch $@

.venv/tested: pyproject.toml | .venv/bin/python
	.venv/bin/pip install --quiet -e '.[test]'
	@touch $@ .venv/installed
