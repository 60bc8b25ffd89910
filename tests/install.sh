#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-or-later
# 'make install' and 'make uninstall', as an administrator or a packager uses them. Needs a built target/release.
set -eu

cd "$(dirname "$0")/.."
umask 077 # of an administrator who is careful
stage=$(mktemp -d)
calling=
trap 'touch "$stage/enough"; [ -z "$calling" ] || wait "$calling" || true; rm -rf "$stage"' EXIT
run() { make --no-print-directory --silent "$@"; }
quiet() { run "$@" DESTDIR="$stage" PREFIX=/usr >/dev/null; }
files() { (cd "$stage" && find . ! -type d | sort); }
fail() {
    echo "install: $*" >&2
    exit 1
}

quiet install
files >"$stage.list"
diff - "$stage.list" <<END || fail "other files than expected"
./etc/jobfence/jobfence.conf
./usr/bin/jobfence
./usr/include/jobfence.h
./usr/lib/slurm/libjobfence.so
./usr/lib/systemd/system/jobfence.service
./usr/lib/systemd/system/jobfence.slice
./usr/libexec/jobfence/docker
./usr/libexec/jobfence/htcondor-job
./usr/sbin/jobfence
./usr/share/bash-completion/completions/jobfence
./usr/share/doc/jobfence/README.md
./usr/share/fish/vendor_completions.d/jobfence.fish
./usr/share/jobfence/gridengine/jsv
./usr/share/jobfence/gridengine/load-sensor
./usr/share/jobfence/pbs/jobfence.CF
./usr/share/jobfence/pbs/jobfence.HK
./usr/share/jobfence/pbs/jobfence.py
./usr/share/jobfence/plugstack.conf
./usr/share/man/man1/jobfence.1
./usr/share/man/man5/jobfence.conf.5
./usr/share/man/man8/jobfence.8
./usr/share/zsh/site-functions/_jobfence
END
rm -f "$stage.list"
[ -z "$(find "$stage" -mindepth 1 ! -type l ! -perm -a=r)" ] || fail "users cannot read all of it"
# Every step daemon maps this file. A commit that raises the bound says what has grown, and why. GNU ld, the linker of older
# compilers, makes it 5 KB larger than lld does, so the bound leaves room for that. The last 18 KB: 7 for ConstrainDevices=yes,
# which denies GPUs alone, in programs of v2, in lists of v1, and in words; 11 for Slurm's files read by Slurm's own rules,
# for what of the node is read before another plugin can change the root, and for TrustAccount: a fact can be what a user claims.
# The last 1 KB: keys of cgroup.conf that are none here are named, and a look with a user's rights waits for no other thread.
# Then 12 KB: the card knows a quota below the grant, the daemons' CPU time, and what no disk has yet, on each node; and a step's
# directory says what its job was granted.
# 1 more: a directory's mode is set whatever the umask is, and a spool of PBS's says no only while its MoM lives.
# Then 8 KB: the PAM module finds out from which job a session comes, and puts it back.
# 2.5 KB after them: StarterMemory, a key of the file that is read here, and the limits of a part of the step's directory.
# 1 KB: of a file with mistakes, the keys that are right say where a fence is that was there before.
# 22 KB after them: CPUs are chosen where a scheduler only counts them (ConstrainCores), and huge pages that were granted are a limit.
# 4 more: a command's end by a signal for real time, spools that are only root's, and what a file with mistakes may not say.
# 0.2 more: a step that is made while its job gives CPUs back has none of those. 5 less: figures are a table, and what forks is one file.
# 2.5 after that: GPUAccounting, GPUIdleAfter and CarbonIntensity, which the file may have wherever it is read. jobfence hold alone acts on them.
# 7 more: a line of the log has the job's name, and a card what killed the job, the name, and the site's own text.
# 4 more: what system calls have moved, in two figures that the step daemon reads, a line of the log has and a card shows.
# 3 more: IdleAfter, IdleAction and GPUIdleAction, which the file may have wherever it is read. 1 more: lines of a later release's records.
# 67 KB: PrivateTmp, which a task enters and the last step removes. 7.5 more: Delegate. 9 more: the keys of Strays and UserReports, and which
# job of a user's a stray goes into. 4 more: PrivateIPC. 2 more: what the card has from jobfence hold. 4.8 more:
# SignalAt and --signal-at, whose value is read, and noted for jobfence hold, which does the rest. 2 more: the keys of login nodes.
# 5 more: HideProcesses, by which a task mounts a proc, and what it has as its input must not lead out. 1 more: a card's note has an age.
# 2.1 more: SignalAt watches processes, throttling and pressure, in up to six conditions of one value.
# 2.8 more: OnOutOfMemory, whose value is read, and the line in the output of a job that runs again.
# 1.1 more: what closes a fence has a lock that janitors see.
# 2.4 more: the keys of MemoryPool, whose values are read. jobfence hold does the rest.
# 5.9 more: NetworkMax, whose bound a launch writes into the table of hold's program, and reads back.
# 2 more: a step that begins knows whether its job was resized, and a change of limits waits for another one. 0.6 more: limit and resize
# have one lock for a job's memory, and open is told when a word is wanted.
# 2.5 more: the keys PrivatePIDs, whose jobs a daemon refuses, and ScavengerEnd; and what hold has noted of a loan is read at a step's end.
# 1.7 more: OnTimeLimit and OnPreempt, whose values are read. 7.5 less: each key has one function, and not one for each deed.
size=$(stat -c %s "$stage/usr/lib/slurm/libjobfence.so")
[ "$(uname -m)" != x86_64 ] || [ "$size" -le 1720500 ] || fail "libjobfence.so has $size bytes, more than 1720500"
# Only what is built for tests lets time pass faster.
for file in sbin/jobfence lib/slurm/libjobfence.so; do
    grep -q "jobfence" "$stage/usr/$file" || fail "$file is not there"
    ! grep -q JOBFENCE_TEST "$stage/usr/$file" || fail "$file heeds a variable of the tests: is it a release?"
done
# Each crate in it runs as root in a scheduler's daemon, and is read by an administrator who asks what that is. Two are ours.
crates=$(cargo tree --locked --offline --package libjobfence --edges normal --prefix none | sed 's/ (\*)$//' | sort -u | wc -l)
[ "$crates" -le 28 ] || fail "the shared object is made of $crates crates: see 'cargo tree -p libjobfence'"
case $(uname -m) in
    x86_64 | aarch64)
        # As in tests/shared_object.rs, here for the files that an administrator gets.
        for file in "$stage/usr/lib/slurm/libjobfence.so" "$stage/usr/sbin/jobfence"; do
            symbols=$(readelf -W --dyn-syms "$file") || fail "readelf"
            newer=$(echo "$symbols" | grep -oE '[^ ]+@GLIBC_(2\.(29|[3-9][0-9])|[^0-9])[^ ]*') &&
                fail "$file needs a glibc newer than 2.28: $newer (see src/sys/glibc.rs)"
        done
        needed=$(readelf -W -d "$stage/usr/lib/slurm/libjobfence.so" | sed -n 's/.*Shared library: \[\(.*\)\]/\1/p') || fail "readelf"
        more=$(echo "$needed" | grep -vE '^(libc\.so\.6|ld-linux-.*)$') && fail "libjobfence.so has each launch load $more"
        ;;
esac
line=$stage/usr/share/jobfence/plugstack.conf
grep -qx 'required /usr/lib/slurm/libjobfence.so' "$line" || fail "plugstack line"
grep -qx 'ExecStart=/usr/sbin/jobfence hold' "$stage/usr/lib/systemd/system/jobfence.service" || fail "ExecStart"
hook=$stage/usr/share/jobfence/pbs/jobfence.CF
keys() { grep -v '^#' "$hook" | grep . | tr '\n' ' '; }
[ "$(keys)" = "Library=/usr/lib/slurm/libjobfence.so " ] || fail "the hook's configuration: $(keys)"
grep -rq '@[A-Z]*@' "$stage/etc" "$stage/usr/lib/systemd" "$stage/usr/share/jobfence" && fail "a place was not filled in"

sensor=$stage/usr/share/jobfence/gridengine/load-sensor
grep -qx 'exec /usr/sbin/jobfence host --gridengine' "$sensor" || fail "the load sensor"
[ -x "$sensor" ] || fail "the load sensor cannot be run"

for name in docker htcondor-job; do
    [ "$(readlink "$stage/usr/libexec/jobfence/$name")" = /usr/sbin/jobfence ] || fail "$name is no link to the command"
done

# With another SYSCONFDIR, what reads the configuration is told of it: first of the one that is put there, then of Slurm's, which
# a release of before has put there, and beside which no other one is put.
other=/opt/slurm/etc
for there in jobfence slurm; do
    quiet install SYSCONFDIR=$other 2>"$stage/said"
    [ "$(cd "$stage$other" && find . -type f)" = "./$there/jobfence.conf" ] || fail "not one configuration, in $there"
    config=$other/$there/jobfence.conf
    grep -qx "required /usr/lib/slurm/libjobfence.so config=$config" "$line" || fail "the plugin is not told of SYSCONFDIR"
    grep -qx "ExecStart=/usr/sbin/jobfence hold --config=$config" "$stage/usr/lib/systemd/system/jobfence.service" ||
        fail "jobfence.service is not told of SYSCONFDIR"
    grep -qx "exec /usr/sbin/jobfence host --gridengine --config=$config" "$sensor" ||
        fail "the load sensor is not told of SYSCONFDIR"
    grep -qx "Config=$config" "$hook" || fail "the hook is not told of SYSCONFDIR"
    # All that is not as shipped is that it names itself.
    mkdir -p "$stage$other/slurm"
    [ $there = slurm ] || sed 's|^# /etc/jobfence/|# /etc/slurm/|' "$stage$config" >"$stage$other/slurm/jobfence.conf"
    [ $there = slurm ] || rm "$stage$config"
done
grep -q "$config is the configuration here: no example was put at $stage$other/jobfence/" "$stage/said" ||
    fail "a configuration of Slurm's directory is not spoken of: $(cat "$stage/said")"
quiet uninstall SYSCONFDIR=$other
[ -z "$(find "$stage$other" ! -type d)" ] || fail "left behind: $(find "$stage$other" ! -type d)"
rm -r "$stage/opt" "$stage/said"
quiet install

# Where sbin and bin are one directory, the command is no link to itself. The stage is not there before.
run install DESTDIR="$stage/merged" PREFIX=/usr LINKDIR=/usr/sbin >/dev/null
[ -f "$stage/merged/usr/sbin/jobfence" ] && [ ! -L "$stage/merged/usr/sbin/jobfence" ] || fail "the command is a link to itself"
rm -r "$stage/merged"

# What the administrator wrote stays, through an upgrade and a removal; what nobody changed follows the release.
active=$stage/etc/slurm/plugstack.conf.d/jobfence.conf
mkdir -p "$(dirname "$active")"
cp "$line" "$active"
echo '# of another release' | tee -a "$line" >>"$active"
quiet install 2>/dev/null
cmp -s "$line" "$active" || fail "the line that nobody changed is another release's"
echo 'required /usr/lib/slurm/libjobfence.so Mode=observe' >"$active"
echo 'Mode=observe' >>"$stage/etc/jobfence/jobfence.conf"
said=$(run install DESTDIR="$stage" PREFIX=/usr 2>&1 >/dev/null)
tail -n 1 "$stage/etc/jobfence/jobfence.conf" | grep -qx 'Mode=observe' || fail "jobfence.conf was written over"
grep -qx 'required /usr/lib/slurm/libjobfence.so Mode=observe' "$active" || fail "the line was written over"
[ "$(ls -A "$(dirname "$active")")" = jobfence.conf ] || fail "something else is where Slurm reads all there is"
case $said in *"plugstack.conf.d/jobfence.conf was changed"*) ;; *) fail "a changed line is not spoken of: $said" ;; esac
quiet uninstall
[ "$(files | tr '\n' ' ')" = "./etc/jobfence/jobfence.conf ./etc/slurm/plugstack.conf.d/jobfence.conf " ] || fail "left behind: $(files)"

# A file that nobody changed goes too.
rm "$stage/etc/jobfence/jobfence.conf" "$active"
quiet install
cp "$line" "$active"
quiet uninstall
[ -z "$(files)" ] || fail "left behind: $(files)"
[ ! -e "$stage/etc/jobfence" ] || fail "the directory of the configuration is left behind"

# Upgrades of a node whose jobs go on: at every moment the command can be run, and the line is there as a whole.
quiet install
cp "$line" "$active"
size=$(wc -c <"$active")
(
    called=0 failed=0 lines=0
    while [ ! -e "$stage/enough" ]; do
        called=$((called + 1))
        "$stage/usr/sbin/jobfence" --version >/dev/null 2>&1 || failed=$((failed + 1))
        [ "$(wc -c <"$active")" = "$size" ] || lines=$((lines + 1))
    done
    echo "$called $failed $lines" >"$stage/counts"
) 2>/dev/null &
calling=$!
installs=0
while [ $installs -lt 12 ]; do
    quiet install
    installs=$((installs + 1))
done
touch "$stage/enough"
wait $calling
calling=
read -r called failed lines <"$stage/counts"
echo "$called executions during $installs installs: $failed failed, the line was not whole $lines times"
[ "$called" -gt 12 ] || fail "the command was executed only $called times"
[ "$failed$lines" = 00 ] || fail "an upgrade gets into the way of jobs"
rm "$stage/counts" "$stage/enough"

# A disk that is full: no file can be written, and what is there stays.
before=$(cd "$stage" && find . -type f -exec sha256sum {} + | sort)
if (trap '' XFSZ && ulimit -f 0 && quiet install 2>/dev/null); then fail "nothing can be written, and that is no error"; fi
[ "$before" = "$(cd "$stage" && find . -type f -exec sha256sum {} + | sort)" ] || fail "a full disk has changed something"
quiet uninstall

# Without DESTDIR, the directories that were made are removed, and no others.
rm -rf "$stage/etc" "$stage/usr"
mkdir -p "$stage/root/usr/sbin" "$stage/root/etc/slurm"
printf 'RunDir=%s\nCgroupBase=jobfence-install-%s\n' "$stage/root/run" $$ >"$stage/root/etc/slurm/jobfence.conf"
before=$(find "$stage/root" | sort)
for times in once again; do
    run install PREFIX="$stage/root/usr" SYSCONFDIR="$stage/root/etc" >/dev/null 2>&1
done
[ -x "$stage/root/usr/bin/jobfence" ] || fail "no link to the command ($times)"
run uninstall PREFIX="$stage/root/usr" SYSCONFDIR="$stage/root/etc" >"$stage/said" 2>&1 || fail "uninstall: $(cat "$stage/said")"
[ "$before" = "$(find "$stage/root" | sort)" ] || fail "left behind: $(find "$stage/root" | sort)"
echo "1 passed, 0 failed, 0 skipped"
