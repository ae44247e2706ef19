# make run         set up .venv and run the default training
# make test        set up .venv and run the tests
# make lint        run ruff, mypy and hadolint
# make docs        write docs/configuration.md from the settings
# make docs-site   run the tutorials and build the documentation site; open build/site/index.html without a server
# make clean       remove .venv, build and caches
# PYTHON=python3.12 make ...   select the interpreter

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
	$(BIN)/hadolint --ignore DL3008 packaging/docker/*.Dockerfile  # Debian does not keep old versions, so they cannot be pinned.

docs: $(READY)
	$(BIN)/python tools/write_configuration_docs.py

docs-site: $(READY)
	rm -rf docs/tutorials  # Remove the pages of deleted tutorials.
	NO_MKDOCS_2_WARNING=1 TQDM_DISABLE=1 $(BIN)/mkdocs build --quiet
	@echo 'The site is in build/site/index.html'

clean:
	rm -rf $(VENV) build docs/tutorials .pytest_cache .mypy_cache .ruff_cache .hypothesis

# The file .ready is written last: an interrupted or outdated installation is repeated. compileall uses all cores,
# unlike pip. Its errors are ignored, because some packages contain files for other interpreters. The excluded folders
# are rarely imported, and are two fifths of all code; Python compiles such modules at their first import.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "hyrt needs Python 3.11 or newer: PYTHON=python3.11 make ..."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt -e ".[test,lint,docs]"
	@$(BIN)/python -m compileall -q -j 0 -x '/(tests?|testing|pip|sympy|_inductor|lexers)/' $(VENV)/lib >/dev/null || true
	touch $(READY)
