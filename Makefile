# The verbs of the project. Each installs what it needs first, which takes under a second once it is there.
# Settings: PRESET=ci|dev|release|asan|tsan   JOBS=2   KEEP=1 (demo: leave it running)   TESTS=regex (test: only these)
PRESET ?= ci
JOBS ?= $(shell nproc)
BUILD := build/$(PRESET)
CONFIGURE = cmake --preset $(PRESET) -DPython3_EXECUTABLE=$$(command -v python3) > /dev/null
TIDY_PATHS ?=
SEQUENCES = astraflow.py areal.py vllm_servers.py verl.py
# What must be downloaded, $(1), comes while the compiler works.
define compile_beside
@tools/setup $(1) & downloads=$$!; \
$(MAKE) --no-print-directory compile $(2); \
compiled=$$?; wait $$downloads && exit $$compiled
endef

.DEFAULT_GOAL := help
.PHONY: help demo test gpu build soak soak-engines soak-frameworks examples chaos bench bench-peers fuzz mutants tidy format docs packages setup clean

help: ## print this list
	@echo "Lorry: fresh LoRA adapters from trainers to inference engines."; echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST); echo
	@sed -n 's/^# Settings: /  /p' $(MAKEFILE_LIST)

demo: ## two real engines, a real training loop, version after version (KEEP=1 leaves it running)
	tools/setup packages
	$(call compile_beside,venvs,PRESET=release TARGETS="adapter-store sync-orchestrator engine-proxy lorry")
	KEEP=$(KEEP) BIN_DIR=$(CURDIR)/build/release/bin examples/demo/run

test: ## build, then every test: C++, Python, simulation, fuzzers, engines, lint, charts
	tools/setup packages
	-@tools/setup cuda  # without, all of clients/gpu but what calls the driver is built and tested
	$(call compile_beside,tools venvs)
	$(MAKE) --no-print-directory compile PRESET=fuzz TARGETS=fuzzers
	ctest --test-dir $(BUILD) -j3 --output-on-failure --no-tests=error $(if $(TESTS),-R '$(TESTS)') || { tools/failures $(BUILD); exit 1; }

gpu: ## the part that packs on a GPU, with nvcc from PyPI; where there is a GPU, its checks and figures
	tools/setup packages cuda
	$(MAKE) --no-print-directory compile PRESET=release TARGETS="lorry_gpu_cuda gpu_hardware"
	tests/gpu/run build/release/bin || [ $$? -eq 77 ]

build: ## build everything (PRESET=dev|release|asan|tsan|ci)
	tools/setup packages
	$(MAKE) --no-print-directory compile

soak: ## the simulator over fresh seeds until stopped, or for SECONDS
	tools/setup packages
	$(MAKE) --no-print-directory compile PRESET=release TARGETS=sim_soak
	build/release/bin/sim_soak $(if $(SECONDS),--seconds=$(SECONDS))

examples: ## each example by itself, on real engines where it asks for them: passed, skipped or failed (NAME=trl: only these)
	tools/setup packages
	$(call compile_beside,venvs,PRESET=release TARGETS="adapter-store sync-orchestrator engine-proxy lorry")
	.venv/dev/bin/python -B clients/python/generate.py
	BIN_DIR=$(CURDIR)/build/release/bin examples/run_all $(NAME)

soak-engines: ## a real engine (KIND=vllm|sglang) synced over and over for SECONDS (3600): what grows?
	tools/setup packages
	$(call compile_beside,venvs,PRESET=release TARGETS="adapter-store sync-orchestrator engine-proxy lorry")
	.venv/dev/bin/python -B clients/python/generate.py
	.venv/dev/bin/python -B tests/bench/generation/soak.py build/release/bin --engines real --kind $(or $(KIND),vllm) \
	  --seconds $(or $(SECONDS),3600)

soak-frameworks: ## what frameworks do at doors by themselves, ROUNDS times (1000) each, on fakes with every engine bug: hours
	tools/setup packages
	$(call compile_beside,venvs,PRESET=release TARGETS="adapter-store sync-orchestrator engine-proxy lorry")
	.venv/dev/bin/python -B clients/python/generate.py
	LORRY_BIN_DIR=$(CURDIR)/build/release/bin LORRY_ROUNDS=$(or $(ROUNDS),1000) tests/run_pytest fake -s --timeout 7200 \
	  -k "astraflow or areal or miles or vllm_servers or verl" integration/test_bindings.py $(addprefix integration/frameworks/test_,$(SEQUENCES))

chaos: ## real services under seeded faults for SECONDS (300), SEED (drawn), ENGINES (4); judged from outside
	tools/setup packages
	$(call compile_beside,venvs,PRESET=release TARGETS="adapter-store sync-orchestrator engine-proxy lorry")
	.venv/dev/bin/python -B clients/python/generate.py
	LORRY_BIN_DIR=$(CURDIR)/build/release/bin tests/chaos/run --seconds $(or $(SECONDS),300) --engines $(or $(ENGINES),4) \
	  $(if $(SEED),--seed $(SEED))

bench: ## first honest figures: transfer and door, beside their peers
	tools/setup packages venvs
	$(MAKE) --no-print-directory compile PRESET=release TARGETS="all door_alone machine_bench relays_bench session_crowd"
	BIN_DIR=$(CURDIR)/build/release/bin tests/bench/run

bench-peers: ## Lorry's transfer beside NIXL, Ray, Mooncake, gloo ..., which this installs (ARGS='--large --only lorry,nixl')
	tools/setup packages venvs
	$(MAKE) --no-print-directory compile PRESET=release TARGETS=transfer_bench
	.venv/dev/bin/python -B tests/bench/transfer/peers/table.py build/release/bin --install --json build/release/peers.json $(ARGS)

fuzz: ## libFuzzer over the doors, the services and every parser of foreign bytes, SECONDS each (60 by default)
	tools/setup packages
	$(MAKE) --no-print-directory compile PRESET=fuzz TARGETS=fuzzers
	tools/fuzz build/fuzz/bin $(or $(SECONDS),60)

mutants: ## which one-line faults do seeds and unit tests notice? FILES='lib/peft/*', SECONDS and SAMPLE=300 bound it
	tools/setup packages tools
	$(MAKE) --no-print-directory compile TARGETS=sim_tests
	$(MAKE) --no-print-directory compile PRESET=mutants TARGETS=mutants
	tools/mutants/run --original=$(BUILD)/bin $(if $(FILES),--files $(FILES)) $(if $(SECONDS),--seconds=$(SECONDS)) $(if $(SAMPLE),--sample=$(SAMPLE))

tidy: ## sizes, includes, banned calls, formatting; then clang-tidy over TIDY_PATHS or what differs from main
	tools/setup packages
	tools/tidy
	$(CONFIGURE) && tools/clang-tidy $(BUILD) $(TIDY_PATHS)

format: ## clang-format over the C++ of the tree
	tools/setup packages
	git ls-files -z '*.h' '*.cc' | xargs -0 -r clang-format-16 -i

docs: ## regenerate what is generated: the dashboard, the chart's rules, docs/CLI.md
	tools/setup packages tools
	.cache/tools/venv/bin/python -B deploy/grafana/dashboard.py
	cp deploy/prometheus/alerts.yaml helm/lorry/files/alerts.yaml
	$(MAKE) --no-print-directory compile PRESET=release TARGETS=lorry
	build/release/bin/lorry help --markdown > build/release/CLI.md
	cp build/release/CLI.md docs/CLI.md

packages: ## wheels and Debian packages of a release build, in build/release/packages
	tools/setup packages
	-@tools/setup cuda  # without, the wheel lacks what packs on a GPU, and packaging/build.py says so
	tools/setup-venvs dev  # for uv, which builds the client
	$(MAKE) --no-print-directory compile PRESET=release TARGETS=shipped
	python3 packaging/build.py client --out build/release/packages
	python3 packaging/build.py programs --bin-dir build/release/bin --out build/release/packages
	cd build/release/packages && cpack -G DEB --config ../CPackConfig.cmake

setup: ## install the packages, tools, Python environments and the CUDA compiler only
	tools/setup

clean: ## remove build outputs; installed tools and environments stay
	rm -rf build

.PHONY: compile
compile:
	$(CONFIGURE)
	cmake --build $(BUILD) -j$(JOBS) $(if $(TARGETS),--target $(TARGETS))
