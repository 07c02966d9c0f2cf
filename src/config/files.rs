//! The files that the configuration names: whether a run could load them.

use super::Config;
use super::reader::Reader;
use crate::admin::{Access, AccessError};
use crate::budget;
use crate::named_file::ReadError;
use crate::secret_file::SecretFileError;
use crate::tls::connector::Connector;
use crate::tls::{Acceptor, LoadError};

/// Reports every file that can't be loaded.
pub(super) fn inspect(config: &Config, reader: &mut Reader<'_>) {
    if let Some(Err(error)) = config.shared_budget.as_ref().map(budget::check) {
        reader.unusable("shared_budget.ca", error.to_string(), None);
    }
    for error in Acceptor::load(&config.tls).err().unwrap_or_default() {
        report(reader, error.key(), &error.to_string(), is_missing(&error));
    }
    let connector = config.upstream.tls.as_ref();
    let connector = connector.map(|settings| Connector::load(settings, None));
    for error in connector.and_then(Result::err).unwrap_or_default() {
        report(reader, error.key(), &error.to_string(), is_missing(&error));
    }
    for error in Access::load(&config.admin.guard).err().unwrap_or_default() {
        let missing = match &error {
            AccessError::Tls(error) => is_missing(error),
            AccessError::File(SecretFileError::Unreadable { error, .. }) => is_of_system(error),
            _ => false,
        };
        report(reader, &error.key(), &error.to_string(), missing);
    }
}

fn is_missing(error: &LoadError) -> bool {
    matches!(error, LoadError::Unreadable { error, .. } if is_of_system(error))
}

fn is_of_system(error: &ReadError) -> bool {
    matches!(error, ReadError::System(_))
}

fn report(reader: &mut Reader<'_>, key: &str, text: &str, is_missing: bool) {
    let found = text
        .strip_prefix(key)
        .and_then(|text| text.strip_prefix(": "))
        .unwrap_or(text)
        .to_owned();
    let hint = is_missing.then_some(
        "relative paths begin in the folder that Seawall is started in; trial certificates: seawall certs --out DIR",
    );
    reader.unusable(key, found, hint);
}
