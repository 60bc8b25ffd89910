# SPDX-License-Identifier: GPL-2.0-or-later
# make            build                          make demo    see it work, in a private Slurm, or with SCHEDULER=openpbs
#                                                             OPENPBS=DIR in the OpenPBS that is installed below DIR, or with
#                                                             SCHEDULER=gridengine or htcondor in a virtual machine with that
# make quick      short tests                    make bench   the numbers, beside others'; BASE= another commit; make bench-vm
# make check      before a change lands          make check-all  every test everywhere, for a release
# make slice SLICE=N  what a 'make check' had of 'make check-all'
# make mutants    NAME="…" deliberate breaks of the code, and what notices each; USERS= of its private Slurm
# make install    DESTDIR= PREFIX=               make vm      virtual machines: CELL="…" CASES="…", otherwise all
# make dist       target/dist: the last commit as one archive that builds without a network; SIGN=KEY signs it by minisign
# make deb        target/deb: Debian packages, and an apt repository of them; with SO= and BIN=, of what is built
# make rpm        target/rpm: RPM packages for RHEL, Fedora and SUSE, and a repository of them
# make fuzz       TARGET=… SECONDS=…, otherwise every target for a minute
# make pictures   docs/pictures again, from a real run in a virtual machine
# make bench-share  what a node does with and without scavengers, and target/share/share.svg; MINUTES=, SEED=; CELL=: in a virtual machine
# make soak       N= short jobs and kills at random, in a virtual machine (CELL=) or, with SITE=private, on this one; SEED=

CARGO ?= cargo
CELL ?=
CASES ?=
JOBS ?= 1
TARGET ?=
SECONDS ?= 60
N ?= 2000
SITE ?= vm
SEED ?=
MINUTES ?=
SLICE ?=
NAME ?=
USERS ?=
SCHEDULER ?= slurm
OPENPBS ?=
BASE ?=
SIGN ?=
BASE_DIR = target/bench/$(BASE)

SO = target/release/libjobfence.so
BIN = target/release/jobfence
SOURCES = $(wildcard .cargo/*) Cargo.toml Cargo.lock build.rs $(shell find src include -type f)

.PHONY: all built cargo demo quick check slice check-all mutants bench bench-vm bench-share vm fuzz soak pictures install uninstall dist deb rpm \
    bindings clean

all: cargo
	$(CARGO) build --release --locked

cargo:
	@command -v $(CARGO) >/dev/null || \
	    { echo "make: $(CARGO) is missing: install Rust 1.88 or later, for example with rustup" >&2; exit 1; }

demo: cargo
ifeq ($(SCHEDULER),openpbs)
	tests/need build openpbs
	$(MAKE) all
	OPENPBS=$(OPENPBS) python3 -B tests/demo.py --scheduler openpbs --so $(SO) --bin $(BIN)
else ifeq ($(SCHEDULER),gridengine)
	tests/need build vm
	$(MAKE) all
	python3 -B tests/vm/cell.py debian12-v2-gridengine --demo
else ifeq ($(SCHEDULER),htcondor)
	tests/need build vm
	$(MAKE) all
	python3 -B tests/vm/cell.py debian13-v2-htcondor --demo
else
	tests/need build slurm
	$(MAKE) all
	python3 -B tests/demo.py --so $(SO) --bin $(BIN)
endif

quick: cargo
	tests/need build host
	python3 -B tests/check.py --tier quick

check: cargo
	tests/need build host browser collector slurm accounting vm release deb rpm
	python3 -B tests/check.py

slice: cargo
	tests/need build slurm accounting vm release deb rpm
	python3 -B tests/check.py --slice $(SLICE)

check-all: cargo
	tests/need build host browser collector slurm accounting vm release deb rpm cluster
	JOBFENCE_FAULTS=all python3 -B tests/check.py --tier all

mutants: cargo
	tests/need build host slurm
	python3 -B tests/mutants.py $(if $(USERS),--users $(USERS)) -- $(NAME)

bench:
	tests/need build slurm bench
	$(MAKE) all
	$(if $(BASE),benches/base $(BASE) $(BASE_DIR))
	$(CARGO) bench --locked --bench setup
	$(CARGO) bench --locked --bench many
	python3 -B benches/others.py --bin $(BIN)
	python3 -B benches/launch.py --so $(SO) --bin $(BIN) $(if $(BASE),--base $(BASE_DIR)/$(SO))

# In a virtual machine with systemd and cgroup v2. There each instruction costs ten times as much, and a wait the same.
bench-vm: all
	tests/need build vm
	python3 -B tests/vm/cell.py debian12-v2-bench --bench

# As released, but that five minutes may pass faster: a jobfence without optimisation takes too long for each look.
SHARE_BIN = target/share/release/jobfence
bench-share: cargo
	tests/need build
	CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS=true CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=8 \
	    $(CARGO) build --release --locked --bin jobfence --target-dir target/share
ifneq ($(CELL),)
	tests/need vm
	$(MAKE) all
	python3 -B tests/vm/cell.py $(CELL) --counted --bench-share $(SHARE_BIN) $(addprefix --minutes ,$(MINUTES)) $(addprefix --seed ,$(SEED))
	python3 -B benches/share.py --from target/vm/results/$(CELL)/share.json --chart target/share/share.svg >target/share/$(CELL).txt
else
	python3 -B benches/share.py --bin $(SHARE_BIN) --chart target/share/share.svg $(addprefix --minutes ,$(MINUTES)) $(addprefix --seed ,$(SEED))
endif

vm: all
	tests/need build vm
	python3 -B tests/vm/matrix.py --jobs $(JOBS) --only $(CASES) --cell $(CELL)

fuzz:
	tests/fuzz/run $(SECONDS) $(TARGET)

soak: all
ifeq ($(SITE),private)
	tests/need build slurm
	python3 -B tests/slurm/soak.py --so $(SO) --bin $(BIN) -n $(N) $(addprefix --seed ,$(SEED))
else
	tests/need build vm
	tests/vm/cell.py $(or $(CELL),debian12-v2-own) --soak $(N) $(addprefix --seed ,$(SEED))
endif

pictures: all
	tests/need build vm browser
	JOBFENCE_RENEW=1 python3 -B tests/vm/cell.py debian13-v2-own --installed pictures

dist: cargo
	SIGN="$(abspath $(SIGN))" packaging/dist

deb: cargo
	tests/need build deb
	packaging/deb

rpm: dist
	tests/need build rpm
	packaging/rpm/build target/dist/jobfence-*.tar.xz

# Renews the committed bindings; needs slurm/spank.h and libclang.
bindings:
	rm -f target/debug/build/jobfence-*/out/bindings.rs
	touch build.rs
	$(CARGO) build --locked
	cp $$(ls -t target/debug/build/jobfence-*/out/bindings.rs | head -n 1) src/schedulers/slurm/spank/bindings.rs

# Turns nothing on, and can be run while jobs run. The script has the places, which make hands on if they are said.
install: built
	plugstack/installation put

built: $(SO) $(BIN)

$(SO) $(BIN): $(SOURCES)
	$(MAKE) all
	touch $(SO) $(BIN)

# Turns jobfence off first. Leaves jobfence.conf, and the line in plugstack.conf.d, if they were changed.
uninstall:
	plugstack/installation remove

clean:
	$(CARGO) clean
