//! The files that the configuration names: whether a run could load them.

use std::fs::File;
use std::path::Path;

use super::Config;
use super::reader::Reader;

/// Reports every file that can't be loaded.
pub(super) fn inspect(config: &Config, reader: &mut Reader<'_>) {
    readable("tls.certificate", &config.tls.certificate, reader);
    readable("tls.private_key", &config.tls.private_key, reader);
}

fn readable(key: &str, path: &Path, reader: &mut Reader<'_>) {
    // What is missing has an empty path and was reported as such.
    if path.as_os_str().is_empty() {
        return;
    }
    let opened = File::open(path).and_then(|file| file.metadata());
    let found = match opened {
        Ok(about) if about.is_dir() => format!("{} is a directory", path.display()),
        Ok(_) => return,
        Err(error) => format!("{} can't be read: {error}", path.display()),
    };
    let hint = "relative paths begin in the folder that Seawall is started in; trial certificates: seawall certs --out DIR";
    reader.unusable(key, found, hint);
}
