# SPDX-License-Identifier: GPL-2.0-or-later
# make            build                          make demo    see it work, in a private Slurm
# make check      every test                     make bench   the numbers, with their floor
# make install    DESTDIR= PREFIX=               make vm      virtual machines: CELL="…" CASES="…", otherwise all
# make fuzz       TARGET=… SECONDS=…, otherwise every target for a minute
# make soak       N= short jobs and kills at random, in a virtual machine (CELL=) or, with SITE=private, on this one; SEED=

PREFIX ?= /usr/local
SYSCONFDIR ?= /etc
BINDIR ?= $(PREFIX)/sbin
LIBDIR ?= $(PREFIX)/lib/slurm
UNITDIR ?= $(PREFIX)/lib/systemd/system
MANDIR ?= $(PREFIX)/share/man
DOCDIR ?= $(PREFIX)/share/doc/jobfence
CARGO ?= cargo
CELL ?=
CASES ?=
JOBS ?= 1
TARGET ?=
SECONDS ?= 60
N ?= 2000
SITE ?= vm
SEED ?=

SO = target/release/libjobfence.so
BIN = target/release/jobfence
# Compiled in is /etc/slurm/jobfence.conf; where it is elsewhere, our lines and units say so.
CONFIG = $(SYSCONFDIR)/slurm/jobfence.conf
OTHER = $(if $(filter-out /etc,$(SYSCONFDIR)),$(CONFIG))
PLACE = sed -e 's|@LIBDIR@|$(LIBDIR)|g' -e 's|@BINDIR@|$(BINDIR)|g' \
    -e 's|@ARGUMENT@|$(addprefix $() config=,$(OTHER))|g' -e 's|@OPTION@|$(addprefix $() --config=,$(OTHER))|g'
SOURCES = Cargo.toml Cargo.lock build.rs $(shell find src include -type f)

.PHONY: all demo check bench vm fuzz soak install uninstall bindings clean

all:
	$(CARGO) build --release --locked

demo:
	tests/need build slurm
	$(MAKE) all
	python3 -B tests/demo.py --so $(SO) --bin $(BIN)

check:
	tests/need build host slurm vm
	python3 -B tests/check.py

bench:
	tests/need build slurm bench
	$(MAKE) all
	$(CARGO) bench --locked --bench setup
	python3 -B benches/launch.py --so $(SO) --bin $(BIN)

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

# Renews the committed bindings; needs slurm/spank.h and libclang.
bindings:
	rm -f target/debug/build/jobfence-*/out/bindings.rs
	touch build.rs
	$(CARGO) build --locked
	cp $$(ls -t target/debug/build/jobfence-*/out/bindings.rs | head -n 1) src/entry/spank/bindings.rs

# An administrator's own jobfence.conf is never written over.
install: $(SO) $(BIN)
	install -D -m 0644 $(SO) $(DESTDIR)$(LIBDIR)/.libjobfence.so.new
	mv -f $(DESTDIR)$(LIBDIR)/.libjobfence.so.new $(DESTDIR)$(LIBDIR)/libjobfence.so
	install -D -m 0755 $(BIN) $(DESTDIR)$(BINDIR)/jobfence
	test -e $(DESTDIR)$(CONFIG) || install -D -m 0644 plugstack/jobfence.conf $(DESTDIR)$(CONFIG)
	install -d $(DESTDIR)$(SYSCONFDIR)/slurm/plugstack.conf.d $(DESTDIR)$(UNITDIR)/slurmd.service.d
	$(PLACE) plugstack/plugstack.conf.d/jobfence.conf.in > $(DESTDIR)$(SYSCONFDIR)/slurm/plugstack.conf.d/jobfence.conf
	$(PLACE) plugstack/systemd/jobfence.service.in > $(DESTDIR)$(UNITDIR)/jobfence.service
	install -m 0644 plugstack/systemd/jobfence.slice $(DESTDIR)$(UNITDIR)/jobfence.slice
	install -m 0644 plugstack/systemd/slurmd.service.d/jobfence.conf $(DESTDIR)$(UNITDIR)/slurmd.service.d/jobfence.conf
	install -D -m 0644 docs/man/jobfence.8 $(DESTDIR)$(MANDIR)/man8/jobfence.8
	install -D -m 0644 docs/man/jobfence.conf.5 $(DESTDIR)$(MANDIR)/man5/jobfence.conf.5
	install -D -m 0644 README.md $(DESTDIR)$(DOCDIR)/README.md

$(SO) $(BIN): $(SOURCES)
	$(MAKE) all
	touch $(SO) $(BIN)

# Leaves jobfence.conf if it was changed.
uninstall:
	rm -f $(DESTDIR)$(SYSCONFDIR)/slurm/plugstack.conf.d/jobfence.conf
	rm -f $(DESTDIR)$(LIBDIR)/libjobfence.so $(DESTDIR)$(BINDIR)/jobfence
	rm -f $(DESTDIR)$(UNITDIR)/jobfence.service $(DESTDIR)$(UNITDIR)/jobfence.slice
	rm -f $(DESTDIR)$(UNITDIR)/slurmd.service.d/jobfence.conf
	rm -f $(DESTDIR)$(MANDIR)/man8/jobfence.8 $(DESTDIR)$(MANDIR)/man5/jobfence.conf.5
	rm -f $(DESTDIR)$(DOCDIR)/README.md
	-rmdir $(DESTDIR)$(DOCDIR) $(DESTDIR)$(UNITDIR)/slurmd.service.d $(DESTDIR)$(LIBDIR) 2>/dev/null
	if cmp -s plugstack/jobfence.conf $(DESTDIR)$(CONFIG); then rm -f $(DESTDIR)$(CONFIG); fi

clean:
	$(CARGO) clean
