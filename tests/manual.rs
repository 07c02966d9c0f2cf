//! The manual pages and the completions of the shells, as they are shipped: what the command line's definition says.
//!
//! `SEAWALL_BLESS=1 cargo test --test manual` writes them anew after a change of the command line.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "writes the repository's own files; a panic is a failed test"
)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use clap_complete::Shell;

/// Folder to the files that belong there.
type Shipped = BTreeMap<PathBuf, Vec<u8>>;

#[test]
fn the_shipped_manual_and_completions_are_those_of_the_command_line() {
    let wanted: Shipped = pages().into_iter().chain(completions()).collect();
    if std::env::var_os("SEAWALL_BLESS").is_some() {
        for folder in [PAGES, COMPLETIONS] {
            // Pages of commands that are no more.
            let _ = fs::remove_dir_all(root().join(folder));
            fs::create_dir_all(root().join(folder)).unwrap();
        }
        for (path, text) in &wanted {
            fs::write(root().join(path), text).unwrap();
        }
    }
    let mut found: Vec<PathBuf> = [PAGES, COMPLETIONS].into_iter().flat_map(files).collect();
    found.sort();
    assert_eq!(
        found,
        wanted.keys().cloned().collect::<Vec<_>>(),
        "SEAWALL_BLESS=1 cargo test --test manual writes them anew"
    );
    for (path, text) in wanted {
        assert!(
            fs::read(root().join(&path)).unwrap() == text,
            "{} is not what the command line says: SEAWALL_BLESS=1 cargo test --test manual writes it anew",
            path.display()
        );
    }
}

const PAGES: &str = "deploy/man";
const COMPLETIONS: &str = "deploy/completions";

fn pages() -> Shipped {
    let folder = tempfile::tempdir().unwrap();
    clap_mangen::generate_to(definition(), folder.path()).unwrap();
    read(folder.path(), PAGES)
}

fn completions() -> Shipped {
    let folder = tempfile::tempdir().unwrap();
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut definition(), "seawall", folder.path()).unwrap();
    }
    read(folder.path(), COMPLETIONS)
}

/// `help` of each command explains itself; a page for it would say nothing.
fn definition() -> clap::Command {
    seawall::cli::definition().disable_help_subcommand(true)
}

fn read(folder: &Path, name: &str) -> Shipped {
    fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .map(|path| {
            (
                Path::new(name).join(path.file_name().unwrap()),
                fs::read(&path).unwrap(),
            )
        })
        .collect()
}

fn files(folder: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(root().join(folder)).into_iter().flatten();
    entries
        .map(|entry| Path::new(folder).join(entry.unwrap().file_name()))
        .collect()
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}
