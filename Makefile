# make run    sets up .venv and runs the main job
# make test   sets up .venv and runs the tests
# make lint   ruff, mypy and hadolint
# make docs-site   runs the tutorials and builds the documentation site in build/site, which needs no server:
#                  open its index.html
# PYTHON=python3.12 make ...   chooses the interpreter

PYTHON ?= python3
VENV := .venv
READY := $(VENV)/.ready
BIN := $(VENV)/bin

.PHONY: run test lint docs docs-site clean

run: $(READY)
	$(BIN)/hyrt run
	@echo 'To type hyrt in this shell: source $(VENV)/bin/activate'

test: $(READY)
	$(BIN)/python -m pytest -q -n 2 --dist loadfile

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/hadolint --ignore DL3008 packaging/docker/*.Dockerfile  # Debian keeps no old versions to pin.

docs: $(READY)
	$(BIN)/python tools/write_configuration_docs.py

docs-site: $(READY)
	rm -rf docs/tutorials  # Else what is left of an earlier tutorial is on the site.
	NO_MKDOCS_2_WARNING=1 TQDM_DISABLE=1 $(BIN)/mkdocs build --quiet
	@echo 'The site is in build/site/index.html'

clean:
	rm -rf $(VENV) build docs/tutorials .pytest_cache .mypy_cache .ruff_cache .hypothesis

# Written last: an interrupted installation is done again, and so is one older than what it installs. pip would
# compile modules on one core; some packages bring files for other interpreters, which cannot be compiled. Two
# fifths of all code are tests of packages and what is hardly ever imported: Python compiles it when it is.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "hyrt needs Python 3.11 or newer: PYTHON=python3.11 make ..."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt -e ".[test,lint,docs]"
	@$(BIN)/python -m compileall -q -j 0 -x '/(tests?|testing|pip|sympy|_inductor|lexers)/' $(VENV)/lib >/dev/null || true
	touch $(READY)
