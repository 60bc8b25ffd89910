// SPDX-License-Identifier: GPL-2.0-or-later
//! The one list of what is fuzzed. A target is a module with `run`, which panics if what it reads is not as it has to be, and
//! `WORDS`, which its texts are made of.

pub mod arguments;
pub mod config;
pub mod cpu_list;
pub mod cpus_per_node;
pub mod devices;
pub mod grant;
pub mod gres_conf;
pub mod host_list;
pub mod huge_pages;
pub mod io_rules;
pub mod job_record;
pub mod kernel_log;
pub mod membership;
pub mod mountinfo;
pub mod options;
pub mod plugstack;
pub mod process;
pub mod record;
pub mod requests;
pub mod sections;
pub mod slot_ad;
pub mod slurm_conf;
pub mod spool;
pub mod topology;
pub mod tracked;
pub mod usage;

mod files;
mod slurmstepd;

/// Something that reads.
pub struct Target {
    pub name: &'static str,
    pub run: fn(&[u8]),
    #[allow(dead_code)] // libFuzzer finds its words itself
    pub words: &'static [&'static str],
}

macro_rules! targets {
    ($($name:ident)*) => {
        pub const TARGETS: &[Target] =
            &[$(Target { name: stringify!($name), run: $name::run, words: $name::WORDS }),*];

        #[cfg(test)]
        mod fuzz {
            $(
                #[test]
                fn $name() {
                    crate::test(stringify!($name));
                }
            )*
        }
    };
}

targets! {
    arguments config cpu_list cpus_per_node devices grant gres_conf host_list huge_pages io_rules job_record kernel_log membership mountinfo
    options plugstack process record requests sections slot_ad slurm_conf spool topology tracked usage
}

/// What somebody reads on a terminal or in a log: a line or a few, which no input can blow up or break out of.
fn is_readable(message: &str) {
    assert!(message.len() < 4096, "a message of {} bytes", message.len());
    assert!(!message.chars().any(|c| c.is_control() && c != '\n'), "{message:?}");
}

/// Kernel files and Slurm's are read so.
fn text(data: &[u8]) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(data)
}
