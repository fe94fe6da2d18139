# The README's two commands. Both need only Python 3.11 or newer with pip.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
# modules are compiled when they are first imported: most of what is installed never is, and that took half of the time
PIP = $(BIN)/python -m pip install --quiet --no-compile
# kept even where the caller's settings say otherwise: every process of the tests would compile what it imports again
export PYTHONDONTWRITEBYTECODE =

.PHONY: demo test test-exhaustive test-lowest test-pinned lint docs docs-version release audit install

demo: $(VENV)/installed
	$(BIN)/lastiterate train digits --epsilon 1

test: $(VENV)/installed-test
	$(BIN)/python -m pytest -n 2 --dist loadfile

# the same tests with more draws and every case: hours (CONTRIBUTING.md lists what is here alone)
test-exhaustive: $(VENV)/installed-test
	LASTITERATE_EXHAUSTIVE=1 $(BIN)/python -m pytest -n 2 --dist worksteal

# the lowest versions that pyproject.toml allows, in an environment of their own (Python 3.11 or 3.12)
LOWEST = tests/accounting tests/curves tests/run tests/ledger tests/distribution tests/data tests/cli/test_cli.py \
  tests/engine/test_steps.py tests/engine/test_checkpoint.py tests/release/test_training.py \
  tests/release/test_manifest.py
test-lowest: $(VENV)-lowest/installed
	$(VENV)-lowest/bin/python -m pytest -n 2 --dist loadfile $(LOWEST)

# the versions of constraints.txt, each file compared with its hash; without torch (Python 3.11, Linux, x86-64)
test-pinned: $(VENV)-pinned/installed
	$(VENV)-pinned/bin/python -m pytest -n 2 --dist loadfile

lint: $(VENV)/installed-test
	$(BIN)/ruff check src tests benchmarks docs tools checker
	$(BIN)/ruff format --check src tests benchmarks docs tools checker
	$(BIN)/pyright --threads 2 --pythonpath $(BIN)/python
	$(BIN)/lint-imports
	$(BIN)/codespell README.md CONTRIBUTING.md CHANGELOG.md SECURITY.md docs src checker changelog.d
	$(BIN)/pymarkdown scan -r README.md CONTRIBUTING.md CHANGELOG.md SECURITY.md checker/README.md docs \
	  -e docs/leaderboard.md -e docs/papers.md
	$(BIN)/python tools/check_commits.py

# make release VERSION=1.2.3 checks and builds a release; REHEARSE=--rehearse lists all that is missing
release: $(VENV)-release/installed
	$(VENV)-release/bin/python tools/release.py $(VERSION) $(REHEARSE)

# known vulnerabilities of the versions that the tests have; it asks a public database
audit: $(VENV)-release/installed
	$(VENV)-release/bin/pip-audit --disable-pip --no-deps -r constraints.txt

# site/ is read from any host, and from files: site/index.html
docs: $(VENV)/installed
	$(PIP) -e '.[docs]'
	$(BIN)/mkdocs build --strict

# the same as a folder of the branch gh-pages, which has all versions: make docs-version VERSION=1.2.3
docs-version: $(VENV)/installed
	$(PIP) -e '.[docs]'
	PATH="$(abspath $(BIN)):$$PATH" mike deploy --update-aliases --alias-type redirect --title $(VERSION) \
	  $(basename $(VERSION)) latest
	$(BIN)/mike set-default latest

$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), "lastiterate needs Python 3.11 or newer"'
	$(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade pip
	$(PIP) -c constraints.txt -e .
	touch $@

$(VENV)/installed-test: $(VENV)/installed
	@$(PIP) 'torch==2.13.0' && $(PIP) -c constraints.txt opacus transformers peft onnxscript \
	  || echo "no torch for this Python here: its tests are skipped"
	$(PIP) -c constraints.txt -e '.[test]'
	touch $@

$(VENV)-lowest/installed: pyproject.toml constraints-lowest.txt
	$(PYTHON) -m venv $(VENV)-lowest
	$(VENV)-lowest/bin/python -m pip install --quiet --no-compile -c constraints-lowest.txt -e . \
	  pytest pytest-xdist hypothesis mpmath python-flint pyyaml 'pyarrow<18' 'pandas<3' PLD_accounting httpx setuptools
	touch $@

$(VENV)-release/installed: tools/release-requirements.txt
	$(PYTHON) -m venv $(VENV)-release
	$(VENV)-release/bin/python -m pip install --quiet --no-compile -r tools/release-requirements.txt
	touch $@

$(VENV)-pinned/installed: requirements-test.txt
	$(PYTHON) -m venv $(VENV)-pinned
	$(VENV)-pinned/bin/python -m pip install --quiet --no-compile --require-hashes --no-deps -r requirements-test.txt
	$(VENV)-pinned/bin/python -m pip install --quiet --no-compile --no-deps -e .
	touch $@
