// SPDX-License-Identifier: GPL-2.0-or-later
//! The child of `jobfence hold` that asks the GPUs' drivers: `jobfence gpu-probe`. It answers each line of its stdin by one of its stdout.
//!
//! It is no command for people, so the command line's definition does not have it. It keeps nothing but the library, and ends with its
//! stdin. If the library is of no use any more, it ends after the answer: the next probe opens that of the driver which is there then.

use std::collections::HashMap;
use std::io::{BufRead, Write};
use std::path::Path;
use std::process::ExitCode;

use nix::sys::signal::Signal;

use super::answer::{NvidiaGpu, ProbeAnswer, ProbeQuestion};
use super::drm;
use super::nvml::{LIBRARY, Nvml, NvmlDevice, NvmlError, NvmlResult};

/// The word after the program's name.
pub const WORD: &str = "gpu-probe";

/// Tests name another library here, for a program that was built for tests.
const LIBRARY_OF_TESTS: &str = "JOBFENCE_TEST_NVML";

/// Whether this process is to be the probe.
pub fn is_asked_for() -> bool {
    std::env::args_os().nth(1).is_some_and(|word| word == WORD)
}

/// Answers questions until stdin ends.
pub fn probe() -> ExitCode {
    // A probe that waits for a driver does not see the end of its stdin.
    let _ = nix::sys::prctl::set_pdeathsig(Signal::SIGKILL);
    let _ = std::env::set_current_dir("/");
    // systemd spares jobfence.service when memory is short. A child inherits that, and needs it not.
    let _ = std::fs::write("/proc/self/oom_score_adj", "0");
    let of_tests = cfg!(debug_assertions).then(|| std::env::var(LIBRARY_OF_TESTS).ok()).flatten();
    let library = of_tests.unwrap_or_else(|| LIBRARY.to_owned());
    let mut nvidia = Nvidia { library, nvml: None, seen: HashMap::new() };
    for line in std::io::stdin().lock().lines() {
        let Ok(line) = line else { break };
        let question = serde_json::from_str(&line).ok().as_ref().and_then(ProbeQuestion::from_json);
        let Some(question) = question else { return ExitCode::FAILURE };
        let mut answer = ProbeAnswer::default();
        let is_useful = nvidia.answer(&question, &mut answer);
        answer.drm = question.drm.iter().map(|name| drm::device(Path::new("/sys"), name)).collect();
        if !question.drm.is_empty() {
            match drm::clients(Path::new("/proc"), &question.pids) {
                Some(clients) => answer.clients = clients,
                // If some processes could not be looked at, their use would be missing. So all of it is unknown.
                None => answer.drm.clear(),
            }
        }
        let mut stdout = std::io::stdout().lock();
        let written = stdout.write_all(format!("{}\n", answer.json()).as_bytes()).and_then(|()| stdout.flush());
        if written.is_err() || !is_useful {
            break;
        }
    }
    // NVML is not shut down: that call could hang, too, and the driver notices the end of the process.
    ExitCode::SUCCESS
}

struct Nvidia {
    library: String,
    nvml: Option<Nvml>,
    /// The time of the last sample of each GPU's utilization.
    seen: HashMap<u32, u64>,
}

impl Nvidia {
    /// Returns whether the library is still of use.
    fn answer(&mut self, question: &ProbeQuestion, answer: &mut ProbeAnswer) -> bool {
        if question.nvidia.is_empty() && !question.nvidia_all {
            return true;
        }
        let nvml = match self.nvml.take().map_or_else(|| Nvml::open(&self.library), Ok) {
            Ok(nvml) => self.nvml.insert(nvml),
            Err(error) => {
                answer.trouble.push(error);
                return false;
            }
        };
        let count = match nvml.count() {
            Ok(count) => count,
            Err(error) => {
                answer.trouble.push(error.to_string());
                return !error.is_of_library();
            }
        };
        for at in 0..count {
            let found = nvml.device(at).and_then(|device| Ok((device, nvml.minor(device)?)));
            let done = found.and_then(|(device, minor)| {
                if question.nvidia_all || question.nvidia.contains(&minor) {
                    let gpu = gpu(nvml, (device, minor), question, &mut self.seen, &mut answer.trouble)?;
                    answer.nvidia.push(gpu);
                }
                Ok(())
            });
            if let Err(error) = done {
                answer.trouble.push(format!("GPU at place {at}: {error}"));
                if error.is_of_library() {
                    return false;
                }
            }
        }
        true
    }
}

/// What the driver says of one GPU. Only a failure of the whole library is an error.
fn gpu(
    nvml: &Nvml,
    (device, minor): (NvmlDevice, u32),
    question: &ProbeQuestion,
    seen: &mut HashMap<u32, u64>,
    trouble: &mut Vec<String>,
) -> NvmlResult<NvidiaGpu> {
    let mut gpu = NvidiaGpu { minor, ..NvidiaGpu::default() };
    let mut note = |error: NvmlError| -> NvmlResult<()> {
        if error.is_of_library() {
            return Err(error);
        }
        if !error.is_not_supported() {
            trouble.push(format!("/dev/nvidia{minor}: {error}"));
        }
        Ok(())
    };
    macro_rules! ask {
        ($asked:expr, $what:pat => $then:expr) => {
            match $asked {
                Ok($what) => $then,
                Err(error) => note(error)?,
            }
        };
    }
    ask!(nvml.uuid(device), uuid => gpu.uuid = Some(uuid));
    ask!(nvml.is_divided(device), is_divided => gpu.is_divided = Some(is_divided));
    let began =
        question.nvidia.iter().zip(&question.began).find(|(of, _)| **of == minor).map_or(0, |(_, began)| *began);
    let since = seen.get(&minor).copied().unwrap_or(0).max(began);
    ask!(nvml.utilization(device, since), (mean, most, last) => {
        (gpu.percent, gpu.most_percent) = (Some(mean), Some(most));
        seen.insert(minor, last);
    });
    ask!(nvml.memory(device), (used, total) => (gpu.memory, gpu.memory_total) = (Some(used), Some(total)));
    ask!(nvml.energy(device), energy => gpu.energy = Some(energy));
    ask!(nvml.slowed(device), slowed => gpu.slowed = Some(slowed));
    ask!(nvml.processes(device), processes => gpu.processes = Some(processes));
    ask!(nvml.accounts(device), accounts => {
        let mut accounts = accounts;
        if !accounts && question.accounting {
            ask!(nvml.begin_accounting(device), () => accounts = true);
        }
        if accounts {
            ask!(nvml.accounted(device), accounted => gpu.accounted = Some(accounted));
        }
    });
    Ok(gpu)
}
