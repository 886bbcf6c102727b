# What people type. `make demo` and `make test` set everything up on a fresh Debian or Ubuntu machine with cargo.
CARGO ?= cargo

.PHONY: help deps build demo test lint bench bench-verdicts clean

help: ## this list
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

deps: ## install missing system packages (when allowed; says which otherwise)
	@scripts/deps.sh

build: deps ## the release binary: target/release/rankmesh
	$(CARGO) build --locked --release -p rankmesh

demo: deps ## the main job on this machine: four agents, eight ranks, one of them late
	$(CARGO) build --locked -p rankmesh
	target/debug/rankmesh demo

test: ## every test; as root also those that need eBPF
	@scripts/deps.sh --test
	$(CARGO) test --locked --workspace --all-targets

lint: deps ## formatting and clippy, warnings are errors
	$(CARGO) fmt --all --check
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings

bench: deps ## fan-out latency beside bare quinn in the same run
	$(CARGO) run --locked --release -p scenarios --bin bench-mesh

bench-verdicts: deps ## verdicts on thousands of simulated jobs: precision, recall, false names
	$(CARGO) run --locked --release -p scenarios --bin bench-verdicts

clean: ## forget what was built
	$(CARGO) clean
