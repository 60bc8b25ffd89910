// SPDX-License-Identifier: GPL-2.0-or-later
//! `include/jobfence.h`: it is C and C++, it matches the library, and a program that knows only the header can use every stage of a fence's
//! life.

use std::collections::BTreeSet;
use std::ffi::{CStr, CString, c_char, c_int};
use std::fs;
use std::mem::{MaybeUninit, offset_of};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::ptr;

use jobfence::doors::c_abi::{self, AbiCode, CEnded, CFence, CGrant, CReaped, CTotals, LogLevel};

mod common;

const HEADER: &str = "include/jobfence.h";
const SOURCE: &str = "src/doors/c_abi.rs";
/// The file with its structs.
const LOG_SOURCE: &str = "src/doors/c_abi/callers_log.rs";
const STRUCTS: &str = "src/doors/c_abi/given.rs";

fn top() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(file: &str) -> String {
    fs::read_to_string(top().join(file)).unwrap()
}

/// Whether this compiler exists; otherwise the test is skipped.
fn has_compiler(compiler: &str) -> bool {
    let is_here = Command::new(compiler).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok();
    if !is_here {
        common::skip(&format!("needs {compiler}"));
    }
    is_here
}

/// Compiles a file with the header.
fn compile(compiler: &str, options: &[&str], file: &Path, out: Option<&Path>) -> Output {
    let mut command = Command::new(compiler);
    command.args(options).arg("-I").arg(top().join("include")).arg(file);
    match out {
        Some(out) => command.arg("-o").arg(out).args(["-pthread", "-ldl"]),
        None => command.arg("-fsyntax-only"),
    };
    command.output().unwrap()
}

fn compiled(compiler: &str, options: &[&str], file: &Path, out: &Path) {
    let output = compile(compiler, options, file, Some(out));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn the_header_is_c99_and_cpp() {
    let temp = tempfile::tempdir().unwrap();
    for (compiler, suffix, options) in [
        ("cc", "c", ["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic"].as_slice()),
        ("c++", "cc", &["-std=c++11", "-Wall", "-Wextra", "-Werror", "-pedantic"]),
        ("c++", "cc", &["-Wall", "-Wextra", "-Werror"]),
    ] {
        if !has_compiler(compiler) {
            continue;
        }
        let file = temp.path().join("a").with_extension(suffix);
        // Twice, and without any other header before it.
        fs::write(
            &file,
            "#include \"jobfence.h\"\n#include \"jobfence.h\"\nuint32_t (*f)(void) = jobfence_abi_version;\n",
        )
        .unwrap();
        let output = compile(compiler, options, &file, None);
        assert!(output.status.success(), "{compiler}: {}", String::from_utf8_lossy(&output.stderr));
        if suffix == "cc" {
            // An error if the header declared it as a C++ function, whose symbol has another name.
            let text = "#include \"jobfence.h\"\nextern \"C\" uint32_t jobfence_abi_version(void);\n";
            fs::write(&file, text).unwrap();
            let output = compile(compiler, options, &file, None);
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        }
        fs::write(&file, "#include \"jobfence.h\"\nint (*f)(void) = jobfence_open;\n").unwrap();
        assert!(!compile(compiler, options, &file, None).status.success(), "{compiler} finds nothing wrong");
    }
}

/// A struct of the library: its name in C, its size, and each member with its offset and size.
struct Layout {
    name: &'static str,
    size: usize,
    members: Vec<(&'static str, usize, usize)>,
}

fn size_of_member<T, M>(_: fn(&T) -> &M) -> usize {
    size_of::<M>()
}

/// Does not compile if a member is missing or superfluous.
macro_rules! layout {
    ($rust:ident, $name:literal, $($member:ident),*) => {{
        let _: fn($rust) = |whole| {
            let $rust { $($member: _),* } = whole;
        };
        let members = vec![$((
            stringify!($member),
            offset_of!($rust, $member),
            size_of_member(|whole: &$rust| &whole.$member),
        )),*];
        Layout { name: $name, size: size_of::<$rust>(), members }
    }};
}

fn layouts() -> [Layout; 5] {
    [
        layout!(CFence, "jobfence_fence", size, job, step, run, reserved),
        layout!(
            CGrant,
            "jobfence_grant",
            size,
            cpus,
            memory,
            user,
            partition,
            qos,
            account,
            cpu_limit,
            cpu_burst,
            mem_high,
            pids_max,
            io_max,
            project,
            vnode_type,
            memory_swap,
            gpus,
            huge_pages,
            job_name
        ),
        layout!(
            CTotals,
            "jobfence_totals",
            size,
            fences,
            cpu_us,
            throttled_us,
            memory_peak,
            memory_swap_peak,
            oom_kills,
            forks_refused,
            read_bytes,
            written_bytes
        ),
        layout!(
            CEnded,
            "jobfence_ended",
            size,
            exit_status,
            exit_signal,
            wall_seconds,
            time_limit_seconds,
            nodes,
            tasks,
            flags
        ),
        layout!(CReaped, "jobfence_reaped", size, removed, alive, busy, failed),
    ]
}

/// The header's numbers, from the library.
fn numbers() -> Vec<(&'static str, i64)> {
    let code = |code: AbiCode| i64::from(code as i32);
    let level = |level: LogLevel| i64::from(level as i32);
    vec![
        ("JOBFENCE_ABI_VERSION", c_abi::jobfence_abi_version().into()),
        ("JOBFENCE_OK", code(AbiCode::Ok)),
        ("JOBFENCE_OFF", code(AbiCode::Off)),
        ("JOBFENCE_UNFENCED", code(AbiCode::Unfenced)),
        ("JOBFENCE_USAGE", code(AbiCode::Usage)),
        ("JOBFENCE_REFUSED", code(AbiCode::Refused)),
        ("JOBFENCE_NO_FENCE", code(AbiCode::NoFence)),
        ("JOBFENCE_SYSTEM", code(AbiCode::System)),
        ("JOBFENCE_INTERNAL", code(AbiCode::Internal)),
        ("JOBFENCE_LOG_ERROR", level(LogLevel::Error)),
        ("JOBFENCE_LOG_WARNING", level(LogLevel::Warning)),
        ("JOBFENCE_LOG_INFO", level(LogLevel::Info)),
        ("JOBFENCE_LOG_DEBUG", level(LogLevel::Debug)),
        ("JOBFENCE_NO_TASK", c_abi::NO_TASK),
        ("JOBFENCE_ANY_USER", c_abi::ANY_USER.into()),
        ("JOBFENCE_ARRAY_TASK", c_abi::ARRAY_TASK.cast_signed()),
        ("JOBFENCE_UTF8", c_abi::UTF8.cast_signed()),
        ("JOBFENCE_ZERO_CPUS", c_abi::ZERO_CPUS.cast_signed()),
        ("JOBFENCE_UNKNOWN", c_abi::UNKNOWN.cast_signed()),
    ]
}

/// The header's declarations: without comments and preprocessor lines, with single blanks.
fn declarations() -> String {
    let mut text = read(HEADER);
    while let Some(begin) = text.find("/*") {
        let end = begin + text[begin..].find("*/").unwrap() + 2;
        text.replace_range(begin..end, " ");
    }
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.starts_with("extern \"C\""));
    lines.flat_map(str::split_whitespace).collect::<Vec<_>>().join(" ")
}

/// A declaration in C as `name: type` in Rust.
fn in_rust(declared: &str) -> String {
    let types = [
        ("const struct jobfence_fence *", "*const CFence"),
        ("const struct jobfence_grant *", "*const CGrant"),
        ("const struct jobfence_ended *", "*const CEnded"),
        ("struct jobfence_reaped *", "*mut CReaped"),
        ("struct jobfence_totals *", "*mut CTotals"),
        ("const char *", "*const c_char"),
        ("char **", "*mut *mut c_char"),
        ("char *", "*mut c_char"),
        ("void *", "*mut c_void"),
        ("log_function ", "Option<LogFunction>"),
        ("size_t ", "usize"),
        ("uint32_t ", "u32"),
        ("uint64_t ", "u64"),
        ("int32_t ", "i32"),
        ("int64_t ", "i64"),
        ("int ", "c_int"),
    ];
    let found = types.iter().find_map(|(c, rust)| Some((declared.strip_prefix(c)?, rust)));
    let (name, rust) = found.unwrap_or_else(|| panic!("no type is known for {declared:?}"));
    format!("{name}: {rust}")
}

/// The header's functions, as Rust would declare them.
fn functions_of_the_header() -> BTreeSet<String> {
    let callback = "void (*function)(int level, const char *line, void *data)";
    let text = declarations();
    assert!(text.contains(callback), "{text}");
    let text = text.replace(callback, "log_function function");
    let declared = text.split(';').filter(|declared| declared.contains('('));
    declared
        .map(|declared| {
            let declared = declared.trim().trim_start_matches("} ");
            let (head, parameters) = declared.strip_suffix(')').unwrap().split_once('(').unwrap();
            let parameters = parameters.split(", ").filter(|one| *one != "void").map(in_rust).collect::<Vec<_>>();
            let (name, result) = match head.strip_prefix("void ") {
                Some(name) => (name.to_owned(), String::new()),
                None => {
                    let declared = in_rust(head);
                    let (name, result) = declared.split_once(": ").unwrap();
                    (name.to_owned(), format!(" -> {result}"))
                }
            };
            format!("{name}({}){result}", parameters.join(", "))
        })
        .collect()
}

/// The same from the library's source.
fn functions_of_the_source() -> BTreeSet<String> {
    let source = read(SOURCE);
    let declared = source.split("#[unsafe(no_mangle)]").skip(1);
    declared
        .map(|text| {
            let declared = text.split_once("extern \"C\" fn ").unwrap().1.split_once(" {\n").unwrap().0;
            let plain = declared.split_whitespace().collect::<Vec<_>>().join(" ");
            plain.replace("( ", "(").replace(", )", ")")
        })
        .collect()
}

#[test]
fn each_function_of_the_header_is_one_of_the_library_and_the_other_way_round() {
    let header = functions_of_the_header();
    assert!(header.len() >= 12, "{header:?}");
    assert_eq!(header, functions_of_the_source());
    assert!(read(LOG_SOURCE).contains("type LogFunction = unsafe extern \"C\" fn(c_int, *const c_char, *mut c_void);"));
    let symbols = Command::new("nm").args(["-D", "--defined-only"]).arg(common::shared_object()).output().unwrap();
    let symbols = String::from_utf8(symbols.stdout).unwrap();
    let exported: BTreeSet<&str> = symbols.split_whitespace().filter(|word| word.starts_with("jobfence_")).collect();
    assert_eq!(exported, header.iter().map(|declared| declared.split('(').next().unwrap()).collect());
}

#[test]
fn each_struct_and_number_of_the_header_is_one_of_the_library_and_the_other_way_round() {
    let text = declarations();
    // By their names and types, as written.
    let mut structs: BTreeSet<&str> = BTreeSet::new();
    for part in text.split("struct ").filter(|part| part.split_once(" {").is_some_and(|(name, _)| !name.contains(' ')))
    {
        let (name, rest) = part.split_once(" {").unwrap();
        let members = rest.split_once('}').unwrap().0.split(';').map(str::trim).filter(|member| !member.is_empty());
        let members: Vec<String> = members.map(in_rust).collect();
        let layout = layouts().into_iter().find(|layout| layout.name == name).unwrap_or_else(|| panic!("{name}"));
        assert_eq!(members.iter().map(|m| m.split(':').next().unwrap()).collect::<Vec<_>>(), layout.names(), "{name}");
        let in_source: String = members.iter().map(|member| format!("    pub {member},\n")).collect();
        assert!(read(STRUCTS).contains(&format!(" {{\n{in_source}}}\n")), "{name} has other types:\n{in_source}");
        structs.insert(name);
    }
    assert_eq!(structs, layouts().iter().map(|layout| layout.name).collect());
    let header = read(HEADER);
    let defined = header.lines().filter_map(|line| line.strip_prefix("#define ")?.split_once(' '));
    let names: BTreeSet<&str> = defined.map(|(name, _)| name).collect();
    assert_eq!(names, numbers().iter().map(|(name, _)| *name).collect());

    // By their layout in a compiler.
    if !has_compiler("cc") {
        return;
    }
    let (mut program, mut expected) = (String::new(), String::new());
    let mut expect = |c: &str, value: i64| {
        program += &format!("    printf(\"%s %lld\\n\", \"{c}\", (long long)({c}));\n");
        expected += &format!("{c} {value}\n");
    };
    for Layout { name, size, members } in layouts() {
        expect(&format!("sizeof(struct {name})"), size as i64);
        for (member, offset, size) in &members {
            expect(&format!("offsetof(struct {name}, {member})"), *offset as i64);
            expect(&format!("sizeof(((struct {name} *)0)->{member})"), *size as i64);
        }
        // An added last member must not fall into an older struct's padding, which may hold anything.
        assert_eq!(size, members.iter().map(|(.., size)| size).sum(), "{name} has padding");
        assert_eq!(members[0], ("size", 0, size_of::<usize>()), "{name}");
    }
    numbers().iter().for_each(|(name, value)| expect(name, *value));
    let temp = tempfile::tempdir().unwrap();
    let (file, out) = (temp.path().join("table.c"), temp.path().join("table"));
    let text = format!("#include \"jobfence.h\"\n#include <stdio.h>\nint main(void)\n{{\n{program}    return 0;\n}}\n");
    fs::write(&file, text).unwrap();
    compiled("cc", &["-std=c99", "-Wall", "-Wextra", "-Werror"], &file, &out);
    let output = Command::new(&out).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected);
}

impl Layout {
    fn names(&self) -> Vec<&str> {
        self.members.iter().map(|(name, ..)| *name).collect()
    }
}

/// A base for this test, and the file that names it.
struct Site {
    run: tempfile::TempDir,
    base: common::Base,
}

impl Site {
    fn new(test: &str) -> Option<Self> {
        let base = common::Base::if_root("c-abi", test)?;
        Some(Self { run: tempfile::tempdir().unwrap(), base })
    }

    /// The configuration with these additional lines.
    fn config(&self, more: &str) -> PathBuf {
        let file = self.run.path().join(format!("{}.conf", more.len()));
        let run_dir = self.run.path().join("run");
        let text = format!("CgroupBase={}\nRunDir={}\n{more}\n", self.base.name, run_dir.display());
        fs::write(&file, text).unwrap();
        file
    }

    fn jobfence(&self, words: &[&str]) -> String {
        let output = common::command(words[0], &self.base, self.run.path()).args(&words[1..]).output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{words:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }
}

#[test]
fn a_program_in_c_lives_two_lives_at_once_and_leaves_nothing() {
    let Some(site) = Site::new("program") else { return };
    if !has_compiler("cc") {
        return;
    }
    let (program, report) = (site.run.path().join("life"), site.run.path().join("report"));
    let options = ["-std=gnu99", "-D_GNU_SOURCE", "-g", "-Wall", "-Wextra", "-Werror"];
    compiled("cc", &options, &top().join("tests/c_abi/life.c"), &program);
    let mut command = Command::new(&program);
    command.arg(common::shared_object()).arg(site.config("")).arg(&report).stdin(Stdio::null());
    let output = command.output().unwrap();
    let found = fs::read_to_string(&report).unwrap();
    assert!(output.status.success() && found.is_empty(), "{:?}\n{found}", output.status);
    assert!(output.stdout.is_empty() && output.stderr.is_empty(), "{output:?}");
    let left: Vec<_> = fs::read_dir(site.run.path().join("run")).unwrap().flatten().map(|e| e.file_name()).collect();
    assert!(!left.iter().any(|name| name.to_string_lossy().starts_with("uid_")), "{left:?}");
}

impl Drop for Site {
    /// Also after a test has failed midway.
    fn drop(&mut self) {
        for job in ["12[3].host", "5", "4711.first", "4711.second", "living"] {
            let mut close = common::command("close", &self.base, self.run.path());
            let _ = close.args(["--job", job]).stdout(Stdio::null()).stderr(Stdio::null()).status();
        }
    }
}

fn c(text: &str) -> CString {
    CString::new(text).unwrap()
}

/// The library replaces the process's panic hook, as it must in a host program. Here that would hide why a test fails.
fn have_panics_shown() {
    // SAFETY: no function is given.
    assert_eq!(unsafe { c_abi::jobfence_set_log(None, ptr::null_mut()) }, 0);
    drop(std::panic::take_hook());
}

/// The text from a function, which is then freed.
fn taken(text: *mut c_char) -> String {
    assert!(!text.is_null());
    // SAFETY: a text of the library's, until it is given back.
    let taken = unsafe { CStr::from_ptr(text) }.to_str().unwrap().to_owned();
    // SAFETY: it has not been given back yet.
    unsafe { c_abi::jobfence_free(text) };
    taken
}

fn last_error() -> String {
    // SAFETY: a C string of this thread's.
    unsafe { CStr::from_ptr(c_abi::jobfence_last_error()) }.to_str().unwrap().to_owned()
}

#[test]
fn a_program_and_the_commands_share_a_life_and_say_the_same() {
    let Some(site) = Site::new("shared") else { return };
    have_panics_shown();
    let config = c(site.config("MaxProcesses=99").to_str().unwrap());
    let (job, step) = (c("12[3].host"), c("a"));
    let fence = CFence { size: size_of::<CFence>(), job: job.as_ptr(), step: step.as_ptr(), run: 7, reserved: 0 };
    // SAFETY: zero is a value of each member.
    let mut grant: CGrant = unsafe { MaybeUninit::zeroed().assume_init() };
    (grant.size, grant.cpus, grant.memory) = (size_of::<CGrant>(), 1500, 64 << 20);
    let mut path = ptr::null_mut();
    // SAFETY: C strings, structs of their sizes, and a place for a text.
    let opened = unsafe { c_abi::jobfence_open(config.as_ptr(), &fence, 65_534, ptr::null(), &grant, &raw mut path) };
    assert_eq!((opened, last_error().as_str()), (0, ""));
    assert!(taken(path).ends_with("/uid_65534/job_12+5B3+5D.host/step_a"));

    let usage = || {
        let (mut text, mut json) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: as above.
        let used = unsafe { c_abi::jobfence_usage(config.as_ptr(), &fence, &raw mut text, &raw mut json) };
        assert_eq!(used, 0, "{}", last_error());
        (taken(text) + "\n", taken(json) + "\n")
    };
    let job = ["--job", "12[3].host", "--step", "a"];
    let by_command = |more: &[&str]| site.jobfence(&[&["usage"], job.as_slice(), more].concat());
    // A period may end between the two.
    let timeless = |json: String| {
        let (before, rest) = json.split_once("\"periods\":").unwrap();
        format!("{before}{}", rest.trim_start_matches(|c: char| c.is_ascii_digit()))
    };
    let (text, json) = usage();
    assert_eq!((text, timeless(json)), (by_command(&[]), timeless(by_command(&["--json"]))));
    assert!(usage().1.contains("\"cpus_limit\":1.5,\"memory_limit_bytes\":67108864,"), "{}", usage().1);

    for (cpus, expected) in [(c_abi::ZERO_CPUS, "0.2"), (0, "0.2"), (700, "0.7")] {
        grant.cpus = cpus;
        // SAFETY: as above.
        let limited = unsafe { c_abi::jobfence_limit(config.as_ptr(), &fence, &grant) };
        assert_eq!((limited, last_error().as_str()), (0, ""));
        assert!(usage().1.contains(&format!("\"cpus_limit\":{expected},")), "{cpus}: {}", usage().1);
    }

    let (project, types) = (c("p"), c("thin,gpu"));
    let sections = "MaxProcesses=90\n[Project=p]\nMaxProcesses=70\n[VnodeType=gpu]\nMaxProcesses=60\n\
                    [VnodeType=fat]\nMaxProcesses=5\n[Host=nowhere]\nMaxProcesses=4";
    for (trust, project, types, expected) in [
        ("yes", &project, &types, 60),
        ("yes", &project, &c(""), 70),
        ("yes", &c(""), &c(""), 90),
        // The user could leave it out, too.
        ("no", &c(""), &c(""), 70),
    ] {
        let sections = c(site.config(&format!("TrustAccount={trust}\n{sections}")).to_str().unwrap());
        (grant.project, grant.vnode_type) = (project.as_ptr(), types.as_ptr());
        // SAFETY: as above.
        let limited = unsafe { c_abi::jobfence_limit(sections.as_ptr(), &fence, &grant) };
        assert_eq!((limited, last_error().as_str()), (0, ""));
        assert!(usage().1.contains(&format!("\"processes_limit\":{expected}")), "{}", usage().1);
    }
    site.jobfence(&[&["close"], job.as_slice()].concat());
    // SAFETY: as above.
    let used = unsafe { c_abi::jobfence_usage(config.as_ptr(), &fence, ptr::null_mut(), ptr::null_mut()) };
    assert_eq!(used, AbiCode::NoFence as c_int);
}

#[test]
fn a_job_that_goes_on_without_a_fence_has_a_number_of_its_own() {
    let Some(site) = Site::new("without") else { return };
    have_panics_shown();
    let job = c("5");
    let fence = CFence { size: size_of::<CFence>(), job: job.as_ptr(), step: ptr::null(), run: 0, reserved: 0 };
    let holder = c("pid:2147483646");
    let open = |more: &str| {
        let config = c(site.config(more).to_str().unwrap());
        // SAFETY: C strings and a struct of its size.
        let opened = unsafe {
            c_abi::jobfence_open(config.as_ptr(), &fence, 65_534, holder.as_ptr(), ptr::null(), ptr::null_mut())
        };
        // SAFETY: as above.
        let attached = unsafe { c_abi::jobfence_attach(config.as_ptr(), &fence, 2_147_483_646, c_abi::NO_TASK, 0) };
        (opened, attached)
    };
    let no_fence = AbiCode::NoFence as c_int;
    assert_eq!(open(""), (AbiCode::Refused as c_int, no_fence));
    assert_eq!(open("OnError=warn"), (AbiCode::Unfenced as c_int, no_fence));
    assert_eq!(open("Mode=off"), (AbiCode::Off as c_int, AbiCode::Off as c_int));
    assert!(last_error().contains("Mode=off"), "{}", last_error());
}

#[test]
fn a_configuration_with_a_mistake_finds_fences_but_does_not_say_that_there_are_none() {
    let Some(site) = Site::new("mistake") else { return };
    have_panics_shown();
    let job = c("6");
    let fence = CFence { size: size_of::<CFence>(), job: job.as_ptr(), step: ptr::null(), run: 0, reserved: 0 };
    let holder = c("pid:1");
    let right = c(site.config("").to_str().unwrap());
    // SAFETY: C strings and a struct of its size.
    let opened =
        unsafe { c_abi::jobfence_open(right.as_ptr(), &fence, 65_534, holder.as_ptr(), ptr::null(), ptr::null_mut()) };
    assert_eq!(opened, 0, "{}", last_error());
    let other = site.run.path().join("other");
    let mistake = site.config(&format!("MaxProcesses=many\nRunDir={}", other.display()));
    let text = fs::read_to_string(&mistake).unwrap();
    let without_first = text.lines().filter(|line| !line.ends_with("/run")).collect::<Vec<_>>().join("\n");
    fs::write(&mistake, without_first).unwrap();
    let mistake = c(mistake.to_str().unwrap());
    let all = |config: &CString| {
        // SAFETY: a struct of numbers.
        let (mut totals, none): (CTotals, _) = (unsafe { MaybeUninit::zeroed().assume_init() }, ptr::null_mut());
        totals.size = size_of::<CTotals>();
        // SAFETY: C strings, structs of their sizes, and no places for texts.
        unsafe {
            [
                c_abi::jobfence_total(config.as_ptr(), &fence, &mut totals),
                c_abi::jobfence_usage(config.as_ptr(), &fence, none, none),
                c_abi::jobfence_thaw(config.as_ptr(), &fence),
                c_abi::jobfence_close(config.as_ptr(), &fence, none, none),
            ]
        }
    };
    let (refused, no_fence) = (AbiCode::Refused as c_int, AbiCode::NoFence as c_int);
    let found = all(&mistake);
    assert!([found[0], found[1], found[3]] == [refused; 3] && ![0, no_fence].contains(&found[2]), "{found:?}");
    assert_eq!(all(&right), [0; 4], "{}", last_error());
    assert_eq!(all(&right), [no_fence, no_fence, no_fence, 0], "{}", last_error());
}

#[test]
fn what_cuda_is_to_see_is_said_where_the_nodes_gpus_are_nvidias() {
    let Some(site) = Site::new("gpus") else { return };
    for name in ["nvidia0", "nvidia1", "card0"] {
        std::os::unix::fs::symlink("/dev/zero", site.run.path().join(name)).unwrap();
    }
    let top = site.run.path().display();
    let (none, nvidia, other) = (String::new(), format!("GPUDevice={top}/nvidia%d"), format!("GPUDevice={top}/card%d"));
    let cases = [(&none, 1, None), (&nvidia, 2, Some("0,1")), (&nvidia, 0, Some("")), (&other, 1, None)];
    for (number, (key, gpus, expected)) in cases.into_iter().enumerate() {
        let config = c(site.config(key).to_str().unwrap());
        let job = c(&number.to_string());
        let fence = CFence { size: size_of::<CFence>(), job: job.as_ptr(), step: ptr::null(), run: 1, reserved: 0 };
        // SAFETY: zero is a value of each member.
        let mut grant: CGrant = unsafe { MaybeUninit::zeroed().assume_init() };
        (grant.size, grant.gpus) = (size_of::<CGrant>(), gpus);
        // The second call reports it for the existing fence.
        for _ in 0..2 {
            let mut visible = ptr::dangling_mut();
            let place = &raw mut visible;
            // SAFETY: C strings, structs of their sizes, and a place for a text.
            let opened = unsafe {
                c_abi::jobfence_open_gpus(config.as_ptr(), &fence, 65_534, ptr::null(), &grant, ptr::null_mut(), place)
            };
            assert_eq!((opened, last_error().as_str()), (0, ""));
            let said = if visible.is_null() { None } else { Some(taken(visible)) };
            assert_eq!(said.as_deref(), expected, "{key} {gpus}");
        }
        // SAFETY: as above.
        let closed = unsafe { c_abi::jobfence_close(config.as_ptr(), &fence, ptr::null_mut(), ptr::null_mut()) };
        assert_eq!((closed, last_error().as_str()), (0, ""));
    }
}
