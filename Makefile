# The two commands of the README are `make demo` and `make test`; each does all its own set-up.
SHELL := /bin/bash
ONLY ?=
ARGS ?=
MINUTES ?= 10
SEEDS ?= 1000
FIRST ?= 0
KILLS ?= 100
AGENTS ?= 200
FRAMES ?= 200000
TEXTS ?= 70000
SEED ?= 1
CUTS ?= 200
FROM ?= HEAD~100

DEBS ?= build/debs
SUITE ?=
ARCH ?=

.PHONY: help deb deb-libs deb-test oci oci-test image image-test container-test demo test quick explore mutants simulate hostile storm kills herd fuzz upgrade powercut soak weather bench lint format docs setup lock sbom clean

help:
	@echo "make demo   the whole tree on this machine, compared with the truth   (ARGS='--seconds 60' passes options)"
	@echo "make test   lint and all tests                                        (ARGS='tests/laws -k sum' for some)"
	@echo "make quick  algebra, machines, wire and layers with few examples: under two minutes on two cores"
	@echo "make explore  the property tests with new seeds; prints what to add   (MINUTES=60; ARGS='tests/laws' for some)"
	@echo "make mutants  breaks single lines of custody and completeness; prints which tests caught them   (ONLY='lander')"
	@echo "make simulate  simulated fleets under drawn faults, against the oracle  (SEEDS=10000 FIRST=0; one seed again: SEEDS=1 FIRST=k)"
	@echo "make hostile  damaged frames and texts, exceptions in every handler; good ones all count   (FRAMES=200000 TEXTS=70000)"
	@echo "make storm  kills real processes and brokers, then compares every row with the readings             (KILLS=100)"
	@echo "make kills  kills roots, their JVMs or both 55 times during upkeep of their tables; compares every row  (ARGS='--kills 5')"
	@echo "make herd   200 gateways with TLS come back after their broker restarted; two devices with one identity   (AGENTS=200)"
	@echo "make fuzz   bad messages at the brokers of a running tree                (ARGS='--seconds 3600 --seed 2')"
	@echo "make upgrade  a running tree from the code of a commit to this one, roots first  (FROM=v0.1.0)"
	@echo "make powercut  replays traced writes up to a cut and opens what is left                              (CUTS=200)"
	@echo "make soak   memory, descriptors and disk of a running tree                                          (MINUTES=60)"
	@echo "make weather  a tree under every kind of fault, drawn from a seed; then every row and the books     (MINUTES=20 SEED=1)"
	@echo "make bench  the benchmarks, into build/bench.json                     (ONLY=slicer_1_key for one)"
	@echo "make deb    the Debian packages, into build/debs; make deb-test installs, upgrades, removes and purges them in a trixie"
	@echo "            (SUITE=bookworm for that, with make deb-libs)"
	@echo "make oci    OCI images of gateway, region and lander, into build/oci (ROLES=root: that one); make oci-test runs a gateway in its own (ROLES=root: a root too)"
	@echo "make image  the gateway's flashable image, into build/image; make image-test boots it in QEMU and uses it (both as root)"
	@echo "make container-test  the image's units in a container of trixie, without emulation: updates, a way back, power cuts (as root)"
	@echo "make lint   ruff and mypy     make format  ruff's formatter     make setup  only the set-up"
	@echo "make sbom   bills of materials (CycloneDX) of a gateway and of the cloud, into build/sbom"
	@echo "make docs   the tables of docs/configure.md, the schemas and schemas/tables.md, made from the code"

demo: setup
	@. scripts/env && exec .venv/bin/headwater demo $(ARGS)

test:
	@scripts/test $(ARGS)

quick:
	@scripts/quick $(ARGS)

explore:
	@MINUTES=$(MINUTES) scripts/explore $(ARGS)

mutants:
	@scripts/setup python && nice .venv/bin/python -m tests.mutants $(ONLY)

simulate:
	@scripts/setup python && . scripts/env && exec .venv/bin/python -m tests.support.simulation --seeds $(SEEDS) --first $(FIRST) $(ARGS)

hostile:
	@scripts/setup python && . scripts/env && .venv/bin/python -m tests.hostile.fuzz --frames $(FRAMES) --texts $(TEXTS) --seed $(SEED) \
		&& HEADWATER_INJECT_EVERY=1 .venv/bin/python -m pytest -q tests/hostile

storm:
	@scripts/setup system python && . scripts/env && .venv/bin/python -m tests.faults.storm --kills $(KILLS) $(ARGS) && \
		exec .venv/bin/python -m tests.faults.restarts

kills:
	@scripts/setup && . scripts/env && exec .venv/bin/python -m tests.faults.root_kills $(ARGS)

herd:
	@scripts/setup system python && .venv/bin/python -m tests.faults.herd --agents $(AGENTS) $(ARGS) && \
		exec .venv/bin/python -m tests.faults.twins

fuzz:
	@scripts/setup system python && exec .venv/bin/python -m tests.faults.fuzz $(ARGS)

upgrade:
	@scripts/setup system python && exec .venv/bin/python -m tests.faults.upgrade $(FROM) $(ARGS)

powercut:
	@scripts/setup && . scripts/env && .venv/bin/python -m tests.faults.powercut --cuts $(CUTS) $(ARGS) && \
		exec .venv/bin/python -m tests.faults.powercut_root --cuts $(CUTS)

soak:
	@scripts/setup system python && . scripts/env && exec .venv/bin/python -m tests.faults.soak --minutes $(MINUTES) $(ARGS)

weather:
	@scripts/setup && . scripts/env && exec .venv/bin/python -m tests.faults.weather --minutes $(MINUTES) --seed $(SEED) $(ARGS)

bench: setup
	@. scripts/env && exec .venv/bin/python -m tests.benchmarks $(ONLY)

deb:
	@gateway_image/build-deb $(DEBS)

deb-libs:  # for bookworm; ARCH=arm64 or amd64 for another machine
	@scripts/setup python && PYTHON=.venv/bin/python gateway_image/build-libs $(DEBS) $(ARCH)

deb-test:  # as root; root file systems are kept in build/deb-test
	@command -v mmdebstrap >/dev/null || { echo "make deb-test needs mmdebstrap: apt install mmdebstrap"; exit 3; }
	@scripts/setup python && PYTHON=$$PWD/.venv/bin/python SUITE=$(SUITE) ARCH=$(ARCH) gateway_image/test-deb build/deb-test

oci:  # ROLES='gateway root' for some; root fetches Spark
	@gateway_image/build-oci build/oci $(ROLES)

oci-test:
	@gateway_image/test-oci build/oci $(ROLES)

IMAGE_TOOLS := mmdebstrap genimage mcopy mkfs.vfat arch-test qemu-aarch64-static
IMAGE_PACKAGES := mmdebstrap genimage mtools dosfstools e2fsprogs arch-test qemu-user-static
BOOT_TOOLS := qemu-system-aarch64 mcopy nc ssh
BOOT_PACKAGES := qemu-system-arm mtools netcat-openbsd openssh-client

image:
	@for tool in $(IMAGE_TOOLS); do PATH=$$PATH:/usr/sbin command -v $$tool >/dev/null || \
		{ echo "make image needs $$tool: apt install $(IMAGE_PACKAGES)"; exit 3; }; done
	@gateway_image/build-image build/image

container-test:
	@for tool in mmdebstrap systemd-nspawn; do command -v $$tool >/dev/null || \
		{ echo "make container-test needs $$tool: apt install mmdebstrap systemd-container"; exit 3; }; done
	@scripts/setup system python && gateway_image/container-tree build/container-test && \
		.venv/bin/python -m tests.image.container build/container-test/root

image-test:
	@for tool in $(BOOT_TOOLS); do command -v $$tool >/dev/null || \
		{ echo "make image-test needs $$tool: apt install $(BOOT_PACKAGES)"; exit 3; }; done
	@scripts/setup python && RAW=1 gateway_image/build-image build/image-test && \
		.venv/bin/python -m tests.image.boot build/image-test/*.img $(ARGS)

lint:
	@scripts/setup python && scripts/lint

format:
	@scripts/setup python && .venv/bin/ruff check --fix && .venv/bin/ruff format

docs: setup
	@. scripts/env && for page in tests.support.published.reference tests.support.published.schema tests.support.tables_page; do \
		.venv/bin/python -m $$page || exit 1; done

setup:
	@scripts/setup

lock:  # newest versions that pyproject.toml allows (ARGS=keep: those pinned now); look at the difference before you commit it
	@scripts/lock $(ARGS)

sbom:
	@scripts/setup python jars && .venv/bin/python -m tests.support.published.bill_of_materials build/sbom

clean:
	rm -rf build .pytest_cache .mypy_cache .ruff_cache .hypothesis spark-warehouse
