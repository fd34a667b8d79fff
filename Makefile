# One command for all checks of a change: `make check`. CONTRIBUTING.md explains the rest.
.PHONY: setup check lint types test slow coverage goldens

setup:
	pip install --constraint .ci/constraints.txt '.[all,dev]' ./tests/plugin
	pip install --no-deps --editable .
	command -v pre-commit >/dev/null && pre-commit install || true

check: lint types test

lint:
	ruff check .
	ruff format --check .

types:
	mypy
	mypy --config-file tests/mypy.ini

test:
	python -m pytest -n 2 -q

slow:
	python -m pytest -n 2 -q -m slow

coverage:
	python -m pytest -n 2 -q --cov=tvmtarget --cov-report=term-missing:skip-covered

goldens:
	python -m pytest -q --rewrite-goldens tests/test_layering.py tests/test_untrusted.py \
	  tests/building/test_honoured_attributes.py tests/partition/test_options.py tests/partition/test_pipeline.py
