# One word per chore. On a fresh Debian or Ubuntu with Python 3.11+ and a C compiler, `make demo` and `make test` are
# all that is needed: the first run makes .venv, installs into it and builds the kernel; later runs start at once.
#
#   make demo          sample images -> packed -> a network trained from them, beside a Pillow DataLoader; a sheet of crops
#   make test          the tests (6 minutes on 2 cores)
#   make check         lint, types, layers, C warnings as errors, kernel tests under sanitizers
#   make torture       long runs: kills, fuzz, soaks; PART=name for one of them. Results: benchmarks/results/torture-*.md
#   make interop       our files read by other programs, docs/coming-from/ with them, our loader in Lightning, Accelerate, Trainer, timm
#   make bench         every benchmark; NAME=load for one, with PART=cold a part of it. Results: benchmarks/results/
#   make bench-rivals  every rival, each in an environment of its own (some gigabytes). Result: benchmarks/results/rivals.md
#   make docs          the documentation as a site in build/site
#   make wheel         a wheel with libjpeg-turbo inside, tested where there is no system libjpeg
#   make test-simd     the tests on Pillow-SIMD in Pillow's place, in an environment of its own
#   make test-neon     the pixel loops for 64-bit ARM, cross-compiled, against the scalar ones under qemu
#   make system-deps   Debian/Ubuntu packages that building needs (root); SYSTEM_DEPS=0 stops the others running it
#   make clean         remove everything the above made, .venv too
#
# Variables: PYTHON=python3.12 (which Python), VENV=.venv (where to), SYSTEM_DEPS=0, PIP_ARGS="..." (for every install).

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.NOTPARALLEL:
MAKEFLAGS += --no-builtin-rules

PYTHON ?= python3
VENV ?= .venv
SYSTEM_DEPS ?= 1
PIP_ARGS ?=
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check install $(PIP_ARGS) -c constraints.txt
C_SOURCES := $(wildcard iofast/kernel/src/*.[ch])

.PHONY: demo test check torture interop bench bench-rivals docs wheel clean system-deps test-simd test-neon sanitize environment kernel lint

demo: kernel
	rm -rf demo
	$(BIN)/python -m tools.sample_photographs demo/images --per-class 200 --val 40
	$(BIN)/iofast pack demo/images demo/images.lmdb --resize 256
	$(BIN)/iofast info demo/images.lmdb
	$(BIN)/python examples/starved.py demo/images --steps 40
	$(BIN)/python examples/starved.py demo/images.lmdb --steps 40 --loader fast
	$(BIN)/python examples/train.py demo/images.lmdb --size 128 --epochs 4 --checkpoint demo/checkpoint.pt
	$(BIN)/iofast view demo/images.lmdb demo/batch.png --split train --count 40 --columns 10 --size 128 --transform "train(128)"

# A file stays in one process: its fixtures are made once. tests/conftest.py says how many processes there are. They share
# the cores, so operations of torch get one thread in each: threads that wait for each other's core take 16 % more CPU time.
# Compiled tests are kept even where the environment forbids it: without them each process spends 16 s more.
test: kernel
	OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/pytest -n auto --dist loadfile

check: lint sanitize

lint: kernel
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest -q tests/repository/test_layers.py tests/repository/test_repository.py
	tools/check_warnings.sh $(BIN)/python

sanitize: environment
	tools/sanitize.sh $(BIN)/python

torture: kernel
	$(BIN)/python -m tools.torture $(PART)

interop: kernel
	$(PIP) -e '.[interop]' --no-build-isolation
	$(BIN)/pytest -m interop
	PIP_ARGS='$(PIP_ARGS)' $(BIN)/python -m tools.interop

bench: kernel
	$(PIP) -e '.[bench]' --no-build-isolation
	for question in $(if $(NAME),$(NAME),$(patsubst benchmarks/bench_%.py,%,$(wildcard benchmarks/bench_*.py))); do $(BIN)/python -m benchmarks.bench_$$question $(if $(PART),--part $(PART)) || exit 1; done

bench-rivals: kernel
	$(PIP) -e '.[bench]' --no-build-isolation
	PIP_ARGS='$(PIP_ARGS)' $(BIN)/python -m benchmarks.rivals

docs:
	@tools/check_python.sh $(PYTHON)
	PIP_ARGS='$(PIP_ARGS)' $(PYTHON) -m tools.site

wheel: environment
	$(PIP) -e '.[wheel]' --no-build-isolation
	$(BIN)/python -m tools.wheel $(if $(LIBJPEG),--libjpeg $(LIBJPEG))

test-simd: environment
	@[ "$(SYSTEM_DEPS)" = 0 ] || tools/system_deps.sh $(PYTHON) offer pillow
	tools/test_simd.sh $(PYTHON)

test-neon:
	tools/compare_loops.sh neon 4000

system-deps:
	tools/system_deps.sh $(PYTHON) install

environment: $(VENV)/.installed

# What is missing is installed, or named, before pip can fail over it.
$(VENV)/.installed: pyproject.toml constraints.txt
	@[ "$(SYSTEM_DEPS)" = 0 ] || tools/system_deps.sh $(PYTHON) offer
	@tools/check_python.sh $(PYTHON)
	@echo "making $(VENV) and installing into it (the first time takes some minutes; torch is large)"
	[ -x $(BIN)/python ] || $(PYTHON) -m venv $(VENV)
	IOFAST_NO_NATIVE=1 $(PIP) -e '.[dev]'
	touch $@

# No kernel, no stamp: as long as it cannot be built, every run tries again and says so.
kernel: environment $(VENV)/.kernel
$(VENV)/.kernel: setup.py $(C_SOURCES)
	@[ "$(SYSTEM_DEPS)" = 0 ] || tools/system_deps.sh $(PYTHON) offer
	@rm -rf iofast/kernel/_native*.so build/lib.* build/temp.*  # where the build fails, no older kernel may be taken for it
	$(BIN)/python setup.py --quiet build_ext --inplace
	@if ls iofast/kernel/_native*.so >/dev/null 2>&1; then touch $@; fi

clean:
	rm -rf $(VENV) .venv-simd build dist demo *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	rm -f iofast/kernel/_native*.so
	find iofast tests tools benchmarks examples -name __pycache__ -type d -exec rm -rf {} +
