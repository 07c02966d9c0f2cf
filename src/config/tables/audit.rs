//! `[audit]`.

use std::path::PathBuf;

use super::{KIB, MIB};
use crate::config::keys::Change::OnReload;
use crate::config::kind::{Parsed, Whole};
use crate::config::quantity::Size;
use crate::config::reader::Table;
use crate::telemetry::audit::Settings;

/// A file to be written, or none.
const FILE: Parsed<Option<PathBuf>> = Parsed {
    allowed: "path of a file to be written, or \"\" for none",
    parse: |text| Ok((!text.is_empty()).then(|| PathBuf::from(text))),
    show: |path| {
        path.as_ref()
            .map_or_else(String::new, |path| path.display().to_string())
    },
};

pub(super) fn table(table: &mut Table<'_, '_>) -> Option<Settings> {
    // None: a log that nobody asked for fills a disk.
    let path = table.key("path", OnReload, &FILE, None);
    // 256 MiB: about 800,000 attempts, which tools still open.
    let rotate = table.key(
        "rotate",
        OnReload,
        &Size {
            least: 64 * KIB,
            most: 1024 * 1024 * MIB,
        },
        256 * MIB,
    );
    // 8: two GiB in all.
    let keep = table.key(
        "keep",
        OnReload,
        &Whole {
            least: 0,
            most: 10_000,
        },
        8,
    ) as usize;
    path.map(|path| Settings { path, rotate, keep })
}
