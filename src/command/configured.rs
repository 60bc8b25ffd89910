// SPDX-License-Identifier: GPL-2.0-or-later
//! The options that select the configuration, the same for every subcommand that reads it.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;
use jobfence::config::{self, Config, Loaded};
use jobfence::doors::{life, user};
use jobfence::facts::Facts;

/// Where the configuration comes from, as in plugstack.conf.
#[derive(Args)]
pub struct Configured {
    /// Read this configuration, which must exist [default: as jobfence.conf(5) says]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Override a key of the file, such as CPUQuotaPercent=90; may be repeated
    #[arg(short = 'o', value_name = "KEY=VALUE")]
    pub overrides: Vec<OsString>,
}

impl Configured {
    /// Whether the command line has none of these options.
    pub fn is_default(&self) -> bool {
        self.config.is_none() && self.overrides.is_empty()
    }

    /// Only the file, without the keys.
    pub fn file_alone(self) -> Self {
        Self { overrides: Vec::new(), ..self }
    }

    /// The same as arguments in plugstack.conf, each with its option on the command line.
    pub fn named_arguments(&self) -> (Vec<Vec<u8>>, Vec<String>) {
        let mut arguments: Vec<Vec<u8>> = Vec::new();
        let mut names = Vec::new();
        if let Some(file) = &self.config {
            let mut argument = b"config=".to_vec();
            // The grammar requires a path that means the same in every directory.
            let file = std::path::absolute(file).unwrap_or_else(|_| file.clone());
            argument.extend_from_slice(file.as_os_str().as_encoded_bytes());
            arguments.push(argument);
            names.push("--config".to_owned());
        }
        for argument in &self.overrides {
            arguments.push(argument.as_encoded_bytes().to_vec());
            names.push(format!("-o {}", argument.to_string_lossy().escape_debug()));
        }
        (arguments, names)
    }

    pub fn load(&self) -> Result<Loaded, config::LoadError> {
        let (arguments, names) = self.named_arguments();
        let name = |number: usize| names.get(number.saturating_sub(1)).cloned().unwrap_or_default();
        config::load_named(&arguments.iter().map(Vec::as_slice).collect::<Vec<_>>(), &name)
    }
}

/// The settings for a user's processes that are of no job. An error: they are not known.
pub fn for_user(loaded: &Loaded, uid: u32) -> Result<Config, String> {
    // What no scheduler has started is in no partition and no account.
    let mut facts = Facts { uid: Some(uid).into(), ..Facts::default() }.of_no_job();
    user::know(&mut facts, &loaded.asked());
    life::resolve(loaded, facts).map(|resolved| resolved.config).map_err(|error| error.to_string())
}
