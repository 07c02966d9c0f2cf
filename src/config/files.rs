//! The files that the configuration names: whether a run could load them.

use super::Config;
use super::reader::Reader;
use crate::budget;
use crate::tls::{Acceptor, LoadError};

/// Reports every file that can't be loaded.
pub(super) fn inspect(config: &Config, reader: &mut Reader<'_>) {
    inspect_tls(config, reader);
    if let Some(Err(error)) = config.shared_budget.as_ref().map(budget::check) {
        reader.unusable("shared_budget.ca", error.to_string(), None);
    }
}

fn inspect_tls(config: &Config, reader: &mut Reader<'_>) {
    let Err(errors) = Acceptor::load(&config.tls) else {
        return;
    };
    for error in errors {
        let key = error.key();
        let text = error.to_string();
        let found = text
            .strip_prefix(key)
            .and_then(|text| text.strip_prefix(": "))
            .unwrap_or(&text)
            .to_owned();
        let hint = matches!(error, LoadError::Unreadable { .. }).then_some(
            "relative paths begin in the folder that Seawall is started in; trial certificates: seawall certs --out DIR",
        );
        reader.unusable(key, found, hint);
    }
}
