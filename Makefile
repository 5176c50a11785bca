# One command builds the book, one tests everything. Both do their own set-up in .venv and touch nothing outside this
# folder. Every stamp is written last, so that an interrupted step is done again.

PYTHON ?= python3
# More arguments for pip, such as an index that holds PyTorch's CPU build: see README.md, "On a laptop".
PIP_ARGS ?=
PORT ?= 8000
# Four test files at a time, in the order of tests/conftest.py, keep two cores busy: labs wait for their links, tests of
# ranks for a rank that stays out. The tests of one file stay together, as they share ranks and pages; each lab goes alone.
# Those of `make check` share less and wait for nothing: two at a time, and whoever is done takes over from the other.
WORKERS ?= -n 4 --dist loadgroup --no-loadscope-reorder
CHECKERS ?= -n 2 --dist worksteal
# Of `make compose`: how many random compositions, and the seed of the first.
N ?= 50
SEED ?= 0
# More arguments for pytest: `make test ARGS="tests/zero -x"` runs a part.
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet --quiet --disable-pip-version-check
# Python compiles what is imported when it is imported; pip would compile all, which takes longer than to install it.
INSTALL = $(PIP) install --no-compile $(PIP_ARGS) --constraint constraints.txt
BOOK := build/html/index.html
SHARDLAB := $(shell find src/shardlab src/ranklab src/coursekit workshop/room assignments -type f ! -name '*.pyc') $(wildcard measured/*.json tests/*/published_*.csv)

# Bytecode is kept, whatever the environment says: tests, labs and ranks are many processes, and each would compile the
# package again.
unexport PYTHONDONTWRITEBYTECODE

.DELETE_ON_ERROR:
.PHONY: help book check format test nightly compose pdf stills serve lab bench gpu bundle store lock clean

help:  ## what can be made (this text)
	@echo "make <target>, where target is"
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "  %-8s%s\n", $$1, $$2}' Makefile

$(VENV)/.python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "Python 3.11 or newer is needed; $(PYTHON) is $$($(PYTHON) --version). Try: make PYTHON=python3.12 ..."; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' || { \
		echo "Python's venv module is missing. On Debian and Ubuntu: apt-get install python3-venv"; exit 1; }
	@echo "set-up: a virtual environment in $(VENV) ($$($(PYTHON) --version))"
	@$(PYTHON) -m venv --clear $(VENV)
	@touch $@

# What the book needs: bookkit with its dependencies, shardlab without them (they include torch).
$(VENV)/.book: $(VENV)/.python pyproject.toml src/pyproject.toml requirements.txt constraints.txt
	@echo "set-up: what the book needs (a minute or two the first time; no torch)"
	@$(INSTALL) setuptools wheel
	@$(INSTALL) --no-build-isolation --editable ./src
	@$(INSTALL) --no-build-isolation --no-deps --editable .
	@touch $@

# What labs and tests need: torch above all.
$(VENV)/.labs: $(VENV)/.book
	@echo "set-up: what labs and tests need (torch: minutes, the first time)"
	@command -v nvidia-smi >/dev/null 2>&1 || \
		echo "        no NVIDIA GPU found: README.md, \"On a laptop\", says how to get PyTorch's smaller CPU build"
	@$(INSTALL) --no-build-isolation --editable '.[lab,test]'
	@touch $@

# The wheel that the built book carries, for machines that cannot reach the repository.
build/wheel/.built: $(VENV)/.book $(SHARDLAB) setup.py README.md LICENSE
	@echo "book:   the shardlab wheel"
	@rm -rf build/wheel build/lib build/bdist*
	@$(PIP) wheel --no-deps --no-build-isolation --wheel-dir build/wheel .
	@rm -rf build/lib build/bdist*
	@touch $@

book: $(VENV)/.book build/wheel/.built  ## build the book: build/html/index.html
	@echo "book:   the pages (seconds; less when little has changed)"
	@$(BIN)/python -m bookkit . build/html

check: $(VENV)/.labs  ## check a change in a minute: linter, sizes, English, tests without ranks, labs or browser
	@$(BIN)/python tools/prose.py & prose=$$!; $(BIN)/ruff check --quiet . && { $(BIN)/ruff format --check --quiet . || \
		{ echo "check:  make format lays these files out"; false; }; } && $(BIN)/python tools/budgets.py; \
		others=$$?; wait $$prose && exit $$others
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(CHECKERS) -m "not (ranks or labs or browser or slow or nightly)" --quiet </dev/null

format:  ## lay out the Python code
	@$(BIN)/ruff check --quiet --fix .
	@$(BIN)/ruff format .

test: book $(VENV)/.labs  ## run what CI runs: code, labs, pages in a browser; make test ARGS=tests/zero runs a part
	@echo "test:   tests/ without the rows that wait for the night (ten minutes)"
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(WORKERS) -m "not nightly" $(ARGS) </dev/null

nightly: SEED := $(shell echo $$(($$(date +%s) / 86400 * 1000)))
nightly: book $(VENV)/.labs  ## run every test, other compositions each day, labs on pretended GPUs (an hour or two)
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(WORKERS) $(ARGS) </dev/null
	@$(MAKE) --no-print-directory compose SEED=$(SEED)

compose: $(VENV)/.labs  ## train random compositions of techniques beside the plain model, run labs on pretended GPUs; make compose N=50 SEED=7
	@OMP_NUM_THREADS=1 $(BIN)/python tests/compositions.py --cases $(N) --seed $(SEED) </dev/null
	@OMP_NUM_THREADS=1 $(BIN)/python tests/pretended_gpu/run_labs.py </dev/null

pdf: book $(VENV)/.labs  ## print the whole book into build/split-shard-recompute.pdf: tagged, outlined; wants Chromium
	@$(BIN)/python tools/pdf.py build/html build/split-shard-recompute.pdf

stills: book $(VENV)/.labs  ## print each figure, explorer and step of a stepper as a sheet for the projector: build/stills.pdf
	@$(BIN)/python tools/stills.py build/html build/stills.pdf

serve: book  ## serve the book on this machine only
	@echo "serve:  http://127.0.0.1:$(PORT)/ (stop with Ctrl-C)"
	@$(BIN)/python -m http.server --bind 127.0.0.1 --directory build/html $(PORT)

lab: $(VENV)/.labs  ## open the labs in JupyterLab
	@$(BIN)/jupyter lab --notebook-dir labs

bench: book $(VENV)/.labs  ## measure speed and size; reported, never part of the tests
	@$(BIN)/python -m bench

gpu: $(VENV)/.labs  ## measure what only a GPU can show, and write one recording into measured/
	@$(BIN)/python -m coursekit.recordings.record measured --apart

bundle: book $(VENV)/.labs  ## for a workshop: one zip for each platform that installs without a network, tried apart
	@$(BIN)/python tools/bundle.py build/bundle --try -- $(PIP_ARGS)

store: $(VENV)/.labs  ## for authors: make a lab's notebook from its text, with outputs; make store LAB=labs/01-name.md
	@test -n "$(LAB)" || { echo "Which lab? make store LAB=labs/01-name.md"; exit 1; }
	@$(BIN)/python tools/store_lab.py $(LAB)

lock: $(VENV)/.book  ## for authors: write constraints.txt anew from what is newest
	@$(INSTALL) uv
	@$(BIN)/python tools/lock.py

clean:  ## remove everything that was built or installed here
	@rm -rf build $(VENV) src/*.egg-info
