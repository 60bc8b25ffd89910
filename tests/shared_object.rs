// SPDX-License-Identifier: GPL-2.0-or-later
//! The file that Slurm loads: what it exports, where it can be loaded, and what it must not do there.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

mod common;
mod stand_in;

use common::shared_object;

fn output(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output().unwrap();
    assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn exports_what_slurm_pam_and_the_header_ask_for_and_nothing_else() {
    let symbols = output("nm", &["-D", "--defined-only", shared_object().to_str().unwrap()]);
    let exported: BTreeSet<&str> = symbols.lines().filter_map(|line| line.split_whitespace().nth(2)).collect();
    let expected = [
        "jobfence_abi_version",
        "jobfence_attach",
        "jobfence_card",
        "jobfence_close",
        "jobfence_free",
        "jobfence_freeze",
        "jobfence_last_error",
        "jobfence_limit",
        "jobfence_open",
        "jobfence_open_gpus",
        "jobfence_reap",
        "jobfence_set_log",
        "jobfence_thaw",
        "jobfence_total",
        "jobfence_usage",
        "pam_sm_close_session",
        "pam_sm_open_session",
        "plugin_name",
        "plugin_type",
        "plugin_version",
        "slurm_spank_exit",
        "slurm_spank_init",
        "slurm_spank_init_failure_mode",
        "slurm_spank_init_post_opt",
        "slurm_spank_task_exit",
        "slurm_spank_task_init",
        "slurm_spank_task_init_privileged",
        "slurm_spank_task_post_fork",
        "spank_plugin_version",
    ];
    assert_eq!(exported, BTreeSet::from(expected));
}

#[test]
fn plugin_version_is_writable_and_nobody_elses() {
    let so = shared_object();
    let symbols = output("nm", &["-D", so.to_str().unwrap()]);
    assert!(symbols.lines().any(|line| line.ends_with(" D plugin_version")), "{symbols}");
    // The constructor must write into this file's own variable, although every plugin has one of this name.
    let relocations = output("readelf", &["-r", "-W", so.to_str().unwrap()]);
    assert!(!relocations.contains("plugin_version"), "{relocations}");
}

#[test]
fn needs_no_library_of_slurms() {
    let needed = output("readelf", &["-d", "-W", shared_object().to_str().unwrap()]);
    let needed: Vec<&str> = needed.lines().filter(|line| line.contains("(NEEDED)")).collect();
    assert!(needed.iter().all(|line| !line.contains("slurm")), "{needed:?}");
}

/// The glibc of RHEL 8, the oldest system of today's clusters.
const GLIBC: [u32; 2] = [2, 28];

/// Independent of the build host's glibc; see src/glibc.rs. tests/install.sh checks the files of `make install`.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[test]
fn no_symbol_is_newer_than_the_oldest_glibc() {
    for file in [shared_object(), env!("CARGO_BIN_EXE_jobfence").into()] {
        let file = file.to_str().unwrap();
        let symbols = output("readelf", &["-W", "--dyn-syms", file]);
        assert!(symbols.contains("@GLIBC_"), "{file}: no symbol of glibc at all:\n{symbols}");
        let newer: Vec<&str> = symbols.split_whitespace().filter(|word| is_newer(word)).collect();
        assert_eq!(newer, Vec::<&str>::new(), "{file}: newer than glibc 2.28; see src/glibc.rs");
        // Versions needed without a symbol, such as GLIBC_ABI_DT_RELR.
        let versions = output("readelf", &["-W", "-V", file]);
        let newer: Vec<&str> = versions.split_whitespace().filter(|word| is_newer(&format!("@{word}"))).collect();
        assert_eq!(newer, Vec::<&str>::new(), "{file}: these versions are needed");
    }
}

/// `gettid@GLIBC_2.30`, or a version that is no number.
fn is_newer(symbol: &str) -> bool {
    let Some((_, version)) = symbol.split_once("@GLIBC_") else { return false };
    let numbers: Vec<u32> = version.split('.').map_while(|number| number.parse().ok()).collect();
    numbers.is_empty() || numbers.as_slice() > GLIBC.as_slice()
}

/// Functions that moved into libc.so.6 in glibc 2.34 are elsewhere in older releases. Up to 2.29 the loader looks for them only in the
/// library that the file names.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[test]
fn the_command_looks_for_each_function_where_an_old_glibc_has_it() {
    // Lines of each library, whose name is in the first: `Version: 1  File: libdl.so.2  Cnt: 1`.
    let versions = output("readelf", &["-W", "-V", env!("CARGO_BIN_EXE_jobfence")]);
    let libraries: Vec<&str> =
        versions.lines().filter_map(|line| line.split_once("File: ")?.1.split_whitespace().next()).collect();
    assert!(["libdl.so.2", "libpthread.so.0"].iter().all(|library| libraries.contains(library)), "{versions}");
}

/// Each additional library would be loaded at each launch, in srun and in the step daemon. See src/shared_object/build.rs and
/// src/sys/unwinder.rs. tests/install.sh checks what the optimised file loads.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[test]
fn takes_nothing_from_a_library_that_a_process_has_not_loaded_already() {
    let file = shared_object();
    let file = file.to_str().unwrap();
    let versions = output("readelf", &["-W", "-V", file]);
    let libraries: Vec<&str> =
        versions.lines().filter_map(|line| line.split_once("File: ")).map(|(_, rest)| rest).collect();
    assert!(libraries.len() == 1 && libraries[0].starts_with("libc.so.6 "), "{versions}");
    // With a version, an old loader would look for them only in that version's library.
    let symbols = output("nm", &["-D", "--undefined-only", file]);
    let is_moved = |line: &&str| ["dlsym", "pthread_key_"].iter().any(|name| line.contains(name));
    let moved: Vec<&str> = symbols.lines().filter(is_moved).collect();
    assert!(moved.len() > 1 && moved.iter().all(|line| !line.contains('@')), "{symbols}");
}

/// The standard library panics if there is no clock.
#[test]
fn a_panic_is_an_error_and_only_that_loads_the_unwinder() {
    let temp = tempfile::tempdir().unwrap();
    let at = |name: &str| temp.path().join(name).to_str().unwrap().to_owned();
    let (code, clock, config) = (at("clock.c"), at("clock.so"), at("jobfence.conf"));
    let text = r#"
        #include <errno.h>
        #include <sys/syscall.h>
        #include <time.h>
        #include <unistd.h>
        int is_broken;
        int clock_gettime(clockid_t clock, struct timespec *time)
        {
            if (is_broken)
                return errno = EINVAL, -1;
            return syscall(SYS_clock_gettime, clock, time);
        }
    "#;
    fs::write(&code, text).unwrap();
    fs::write(&config, format!("RunDir={}\n", at("run"))).unwrap();
    output("cc", &["-shared", "-fPIC", "-o", &clock, &code]);
    let program = r#"
import ctypes, sys
def has_unwinder(): return "libgcc_s" in open("/proc/self/maps").read()
is_broken = ctypes.c_int.in_dll(ctypes.CDLL(None), "is_broken")
so, lines = ctypes.CDLL(sys.argv[1]), []
so.jobfence_last_error.restype = ctypes.c_char_p
log = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(lambda level, line, data: lines.append(line))
assert so.jobfence_set_log(log, None) == 0
assert not has_unwinder(), "too soon"
for _ in range(3):
    is_broken.value = 1
    code = so.jobfence_reap(sys.argv[2].encode(), 0, None)
    is_broken.value = 0
    assert code == -5, (code, so.jobfence_last_error())
assert has_unwinder(), "no panic has got away by it"
assert lines and all(b"internal error: " in line or b"did not finish" in line for line in lines), lines
print("fine")
"#;
    let file = shared_object();
    let args = ["-S", "-c", program, file.to_str().unwrap(), &config];
    let done = Command::new("/usr/bin/python3").args(args).env("LD_PRELOAD", &clock).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&done.stdout), "fine\n", "{}", String::from_utf8_lossy(&done.stderr));
}

/// In a mount namespace of its own, whose `/etc` has only these files.
#[test]
fn a_step_is_fenced_by_the_first_default_file() {
    if !nix::unistd::geteuid().is_root() {
        return common::skip("needs root");
    }
    let base = common::Base::new(&format!("jobfence-test-{}-place", std::process::id()));
    let temp = tempfile::tempdir().unwrap();
    let Some(stand_in) = stand_in::StandIn::or_skip(temp.path()) else { return };
    let fences = format!("CgroupBase={}\\nRunDir={}", base.name, temp.path().join("run").display());
    let is_fenced = |files: &[(&str, &str)]| {
        let put: Vec<String> =
            files.iter().map(|(name, text)| format!("printf '{text}\\n' >{name}/jobfence.conf")).collect();
        let script = format!(
            "cd /etc && mount -t tmpfs none /etc && cp passwd group nsswitch.conf /etc && cd /etc && mkdir slurm jobfence && {} && exec \"$@\"",
            put.join(" && ")
        );
        let mut unshare = Command::new("unshare");
        unshare.args(["--mount", "sh", "-c", &script, "sh"]);
        let output = stand_in.command_below(unshare, &[], &[]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        if said.contains("unshare failed") {
            return None;
        }
        assert!(output.status.success(), "{said}");
        Some(String::from_utf8_lossy(&output.stdout).contains(&format!("/{}", base.name)))
    };
    for (files, expected) in [
        (&[("jobfence", fences.as_str())][..], true),
        (&[("slurm", "Mode=off"), ("jobfence", &fences)], false),
        (&[("slurm", &fences), ("jobfence", "Mode=off")], true),
        (&[("slurm", &fences)], true),
    ] {
        let Some(found) = is_fenced(files) else { return common::skip("no mount namespace can be made here") };
        assert_eq!(found, expected, "{files:?}");
    }
}

/// Python loads with RTLD_NOW and has no symbol of Slurm: every callback must work all the same.
#[test]
fn loads_and_unloads_outside_of_slurm_and_leaves_nothing() {
    let program = r#"
import ctypes, os, sys
def threads(): return len(os.listdir("/proc/self/task"))
def descriptors(): return len(os.listdir("/proc/self/fd"))
before = threads(), descriptors()
for _ in range(3):
    so = ctypes.CDLL(sys.argv[1])
    for name in ("init", "init_post_opt", "task_init_privileged", "task_init", "task_post_fork", "task_exit", "exit"):
        assert getattr(so, "slurm_spank_" + name)(None, 0, None) == 0, name
    libdl = ctypes.CDLL(None)
    libdl.dlclose.argtypes = [ctypes.c_void_p]
    libdl.dlclose(so._handle)
    assert sys.argv[1] not in open("/proc/self/maps").read(), "still mapped"
assert (threads(), descriptors()) == before, (threads(), descriptors(), before)
print("fine")
"#;
    let so = shared_object();
    assert_eq!(output("/usr/bin/python3", &["-S", "-c", program, so.to_str().unwrap()]), "fine\n");
}
