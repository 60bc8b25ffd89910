// SPDX-License-Identifier: GPL-2.0-or-later
//! Everything that is read from outside, with what nobody would write: each target's corpus, and then as many inputs made of it
//! as fit in a short time. The same targets are programs of `fuzz/`, where a nightly toolchain finds its own way.
//!
//! `JOBFENCE_FUZZ_SEED` makes the same inputs again, `JOBFENCE_FUZZ_SECONDS` is the CPU time for each target, and
//! `JOBFENCE_FUZZ_INPUT` a file that is run alone, by the target that is named on the command line.

mod measure;
mod mutate;
mod targets;

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, Once};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use measure::{Cost, cpu_time, measured};
use mutate::{LONGEST, Rng, grown, mutated};
use targets::{TARGETS, Target};

/// The CPU time for each target, if nobody says otherwise.
const SECONDS: f64 = 1.2;
/// No more inputs than so many, however fast they are.
const MOST_RUNS: u64 = 100_000;

/// What a run may cost without optimisation. Work that grows with the square of 64 KiB is far above it, the longest honest run far
/// below; so is memory that a number asks for, and not a text.
fn most(length: usize) -> Cost {
    let length = u32::try_from(length).unwrap_or(u32::MAX);
    let cpu = Duration::from_millis(200) + Duration::from_micros(20) * length;
    Cost { cpu, bytes: (4 << 20) + 512 * length as usize }
}

static SEED: LazyLock<u64> = LazyLock::new(|| {
    let given = std::env::var("JOBFENCE_FUZZ_SEED").ok().map(|seed| seed.parse().expect("a seed is a number"));
    let seed = given.unwrap_or_else(|| {
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |now| now.as_nanos() as u64 & 0xffff_ffff)
    });
    say(&format!("fuzz: JOBFENCE_FUZZ_SEED={seed}"));
    seed
});

/// Past what the test's harness withholds where nothing fails.
fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// What a target's test does.
fn test(name: &str) {
    quiet();
    let target = TARGETS.iter().find(|target| target.name == name).expect("a test of each target");
    if let Some(file) = std::env::var_os("JOBFENCE_FUZZ_INPUT") {
        let input = fs::read(&file).expect("the input to run");
        let cost = run(target, &input).unwrap_or_else(|error| fail(&format!("{}: {error}", file.display())));
        say(&format!("{name}: {} bytes, {cost:?}", input.len()));
        return;
    }
    let corpus = corpus(name);
    assert!(!corpus.is_empty(), "{name} has no corpus");
    for (file, input) in &corpus {
        if let Err(error) = run(target, input) {
            fail(&format!("{}: {error}", file.display()));
        }
    }
    let seeds: Vec<Vec<u8>> = corpus.into_iter().map(|(_, input)| input).collect();
    let seconds = std::env::var("JOBFENCE_FUZZ_SECONDS").ok().map(|text| text.parse().expect("a number of seconds"));
    let budget = Duration::from_secs_f64(seconds.unwrap_or(SECONDS));
    // Each target by itself is the same, whichever others run.
    let salt = name.bytes().fold(0u64, |salt, byte| salt.wrapping_mul(31).wrapping_add(byte.into()));
    let mut rng = Rng(*SEED ^ salt << 32);
    let (began, mut runs, mut worst) = (cpu_time(), 0, Cost::default());
    while cpu_time() - began < budget && (runs < MOST_RUNS || seconds.is_some()) {
        // At first everything once at its largest.
        let large = usize::try_from(runs).ok().and_then(|index| seeds.get(index));
        let input = match large {
            Some(seed) => grown(&mut rng, seed, LONGEST),
            None => mutated(&mut rng, &seeds, target.words),
        };
        runs += 1;
        match run(target, &input) {
            Ok(cost) => worst = Cost { cpu: worst.cpu.max(cost.cpu), bytes: worst.bytes.max(cost.bytes) },
            Err(error) => {
                let (input, error) = shrunk(target, input, error);
                let file = keep(name, &input);
                fail(&format!(
                    "{name}: {error}\nthe input of {} bytes is kept: JOBFENCE_FUZZ_INPUT={} cargo test --test fuzz fuzz::{name}\n\
                     found by run {runs} of JOBFENCE_FUZZ_SEED={}",
                    input.len(),
                    file.display(),
                    *SEED
                ));
            }
        }
    }
    println!("{name}: {runs} inputs, {:?}, worst {worst:?}", cpu_time() - began);
}

/// Runs one input; the error is what is wrong with how it was read.
fn run(target: &Target, input: &[u8]) -> Result<Cost, String> {
    let once = || {
        let (result, cost) = measured(|| catch_unwind(AssertUnwindSafe(|| (target.run)(input))));
        result.map(|()| cost).map_err(|_| LAST_PANIC.take())
    };
    let (mut cost, most) = (once()?, most(input.len()));
    // A busy machine makes CPU time longer, too: the least of some counts.
    for _ in 0..9 {
        if cost.cpu > most.cpu {
            cost.cpu = cost.cpu.min(once()?.cpu);
        }
    }
    if cost.cpu > most.cpu || cost.bytes > most.bytes {
        return Err(format!("{} bytes cost {cost:?}, more than {most:?}", input.len()));
    }
    Ok(cost)
}

/// A shorter input that fails in the same way, where one is soon found. Not of what took too long: so would each try.
fn shrunk(target: &Target, mut input: Vec<u8>, mut error: String) -> (Vec<u8>, String) {
    if !error.starts_with("panic") {
        return (input, error);
    }
    let place = |error: &str| error.lines().next().unwrap_or_default().to_owned();
    let first = place(&error);
    let deadline = cpu_time() + Duration::from_secs(5);
    let mut size = input.len() / 2;
    while size > 0 {
        let mut at = 0;
        while at < input.len() && cpu_time() < deadline {
            let mut shorter = input.clone();
            shorter.drain(at..(at + size).min(input.len()));
            match run(target, &shorter) {
                Err(again) if place(&again) == first => (input, error) = (shorter, again),
                _ => at += size,
            }
        }
        size /= 2;
    }
    (input, error)
}

thread_local! {
    static LAST_PANIC: std::cell::RefCell<String> = const { std::cell::RefCell::new(String::new()) };
}

/// Panics are results here: the place on a line, and what was said.
fn quiet() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // The doors' own hook, which comes with the first callback, must not replace this one.
        jobfence::sys::guard::guard("fuzz", || ());
        std::panic::set_hook(Box::new(|info| {
            let place = info.location().map(ToString::to_string).unwrap_or_default();
            let payload = info.payload();
            let text = payload.downcast_ref::<&str>().copied();
            let said = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or_default();
            LAST_PANIC.set(format!("panic at {place}\n{said}"));
        }));
    });
}

/// The hook is quiet, so what failed is said here.
fn fail(text: &str) -> ! {
    eprintln!("{text}");
    panic!("{text}");
}

fn keep(name: &str, input: &[u8]) -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("fuzz");
    let file = directory.join(format!("{name}-{}-{:08x}", *SEED, hash(input) as u32));
    fs::create_dir_all(&directory).and_then(|()| fs::write(&file, input)).expect("a file for the input");
    file
}

fn hash(input: &[u8]) -> u64 {
    input.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/corpus")
}

fn corpus(name: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let entries = fs::read_dir(directory().join(name)).expect("a corpus of each target");
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files.into_iter().map(|file| (file.clone(), fs::read(&file).unwrap())).collect()
}

#[test]
fn every_corpus_and_every_program_has_its_target() {
    let names: BTreeSet<String> = TARGETS.iter().map(|target| target.name.to_owned()).collect();
    let corpora = fs::read_dir(directory()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert_eq!(corpora.collect::<BTreeSet<_>>(), names);
    let manifest = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/Cargo.toml")).unwrap();
    let (_, programs) = manifest.split_once("[[bin]]").expect("programs");
    let named = programs.lines().filter_map(|line| line.strip_prefix("name = \"")?.strip_suffix('"'));
    assert_eq!(named.map(str::to_owned).collect::<BTreeSet<_>>(), names);
}

#[test]
fn the_same_seed_makes_the_same_inputs() {
    let seeds = [b"a=1\nb=2\n".to_vec(), b"x".to_vec()];
    let make = || {
        let mut rng = Rng(7);
        (0..500).map(|_| mutated(&mut rng, &seeds, &["word"])).collect::<Vec<_>>()
    };
    let made = make();
    assert_eq!(made, make());
    assert!(made.iter().collect::<BTreeSet<_>>().len() > 200 && made.iter().all(|input| input.len() <= LONGEST));
}
