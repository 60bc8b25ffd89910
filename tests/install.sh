#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-or-later
# 'make install' and 'make uninstall', as an administrator or a packager uses them. Needs a built target/release.
set -eu

cd "$(dirname "$0")/.."
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
quiet() { make --no-print-directory --silent "$@" DESTDIR="$stage" PREFIX=/usr >/dev/null; }
files() { (cd "$stage" && find . -type f | sort); }
fail() {
    echo "install: $*" >&2
    exit 1
}

quiet install
files >"$stage.list"
diff - "$stage.list" <<END || fail "other files than expected"
./etc/slurm/jobfence.conf
./etc/slurm/plugstack.conf.d/jobfence.conf
./usr/lib/slurm/libjobfence.so
./usr/lib/systemd/system/jobfence.service
./usr/lib/systemd/system/jobfence.slice
./usr/lib/systemd/system/slurmd.service.d/jobfence.conf
./usr/sbin/jobfence
./usr/share/doc/jobfence/README.md
./usr/share/man/man5/jobfence.conf.5
./usr/share/man/man8/jobfence.8
END
rm -f "$stage.list"
case $(uname -m) in
    x86_64 | aarch64)
        # As in tests/shared_object.rs, here for the files that an administrator gets.
        for file in "$stage/usr/lib/slurm/libjobfence.so" "$stage/usr/sbin/jobfence"; do
            symbols=$(readelf -W --dyn-syms "$file") || fail "readelf"
            newer=$(echo "$symbols" | grep -oE '[^ ]+@GLIBC_(2\.(29|[3-9][0-9])|[^0-9])[^ ]*') &&
                fail "$file needs a glibc newer than 2.28: $newer (see src/glibc.rs)"
        done
        ;;
esac
grep -qx 'required /usr/lib/slurm/libjobfence.so' "$stage/etc/slurm/plugstack.conf.d/jobfence.conf" || fail "plugstack line"
grep -qx 'ExecStart=/usr/sbin/jobfence hold' "$stage/usr/lib/systemd/system/jobfence.service" || fail "ExecStart"
grep -rq '@[A-Z]*@' "$stage/etc" "$stage/usr/lib/systemd" && fail "a place was not filled in"

quiet install SYSCONFDIR=/opt/slurm/etc
there=/opt/slurm/etc/slurm
[ -e "$stage$there/jobfence.conf" ] || fail "no configuration in SYSCONFDIR"
grep -qx "required /usr/lib/slurm/libjobfence.so config=$there/jobfence.conf" "$stage$there/plugstack.conf.d/jobfence.conf" ||
    fail "the plugin is not told of SYSCONFDIR"
grep -qx "ExecStart=/usr/sbin/jobfence hold --config=$there/jobfence.conf" "$stage/usr/lib/systemd/system/jobfence.service" ||
    fail "jobfence.service is not told of SYSCONFDIR"
quiet uninstall SYSCONFDIR=/opt/slurm/etc
rm -r "$stage/opt"
quiet install

# What the administrator wrote stays, through an upgrade and a removal.
echo 'Mode=observe' >>"$stage/etc/slurm/jobfence.conf"
quiet install
tail -n 1 "$stage/etc/slurm/jobfence.conf" | grep -qx 'Mode=observe' || fail "jobfence.conf was written over"
quiet uninstall
[ "$(files)" = ./etc/slurm/jobfence.conf ] || fail "left behind: $(files)"

# A file that nobody changed goes too.
rm "$stage/etc/slurm/jobfence.conf"
quiet install
quiet uninstall
[ -z "$(files)" ] || fail "left behind: $(files)"
echo "1 passed, 0 failed, 0 skipped"
