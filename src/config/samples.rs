// SPDX-License-Identifier: GPL-2.0-or-later
//! Loads configuration files that a test gives as texts.

use std::fs;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::error::ConfigError;
use super::lexer::{Position, Source, Token};
use super::load::{LoadError, load_or_default, parse};
use super::parser::Assignment;
use super::resolve::Loaded;
use super::sections::Section;

/// The mistakes in a file of this text, each with its line and column.
pub fn errors_of(text: &str) -> Vec<String> {
    let errors = parse("FILE", text.as_bytes()).err().unwrap_or_default();
    errors.iter().map(|e| e.to_string().replacen("FILE:", "", 1)).collect()
}

/// Loads with these arguments; the default file is in a fresh directory, with this text and mode.
pub fn load_file(args: &[&str], file: Option<(&str, u32)>) -> Result<Loaded, String> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f");
    if let Some((text, mode)) = file {
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
    }
    load_at(args, &path)
}

/// As `load_file`, with this path for the default file.
pub fn load_at(args: &[&str], path: &Path) -> Result<Loaded, String> {
    let args: Vec<_> = args.iter().map(|arg| arg.as_bytes()).collect();
    let shorten = |error: LoadError| error.to_string().replace(&path.display().to_string(), "FILE");
    let names: Vec<String> = (1..=args.len()).map(|number| format!("plugstack.conf argument {number}")).collect();
    load_or_default(&args, &names, &[path]).map_err(shorten)
}

/// The section of this header.
pub fn section(kind: &str, values: &str) -> Result<Section, ConfigError> {
    let at = Position { source: Source::File("f"), line: 1, column: 2 };
    let token = |text| Token { text, at };
    // The section copies the text, which need not outlive the call.
    Section::new(&Assignment { key: token(kind), value: token(values) })
}
