//! The files that the configuration names: whether a run could load them.

use super::Config;
use super::reader::Reader;
use crate::admin::{Access, AccessError};
use crate::budget;
use crate::listener;
use crate::named_file::ReadError;
use crate::secret_file::SecretFileError;
use crate::telemetry::audit::{self, AuditError};
use crate::tls::connector::Connector;
use crate::tls::{Acceptor, LoadError};

/// Reports as well what a run could not write to. Looked at by who asks for it alone: a run says it itself, and a reload has
/// what it writes to.
pub(super) fn inspect_all(config: &Config, reader: &mut Reader<'_>) {
    inspect(config, reader);
    if let Some(Err(error)) = config.audit.as_ref().map(|audit| audit::check(&audit.path)) {
        let hint = match error {
            AuditError::Folder { .. } => {
                "the folder has to be there, and the user that Seawall runs as must be allowed to write in it"
            }
            AuditError::NotAnAudit { .. } => "an audit log has a file of its own",
            _ => "name a file that can be written, such as \"/var/log/seawall/audit.jsonl\"",
        };
        reader.unusable(
            "audit.path",
            without_key("audit.path", &error.to_string()),
            Some(hint),
        );
    }
    if let Some(Err(error)) = config.listen.takeover.as_deref().map(listener::check_takeover) {
        let hint = "the folder has to be there and belong to the user that Seawall runs as; systemd makes it: RuntimeDirectory=";
        reader.unusable("listen.takeover", error.to_string(), Some(hint));
    }
}

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
    let found = without_key(key, text);
    let hint = is_missing.then_some(
        "relative paths begin in the folder that Seawall is started in; trial certificates: seawall certs --out DIR",
    );
    reader.unusable(key, found, hint);
}

fn without_key(key: &str, text: &str) -> String {
    let rest = text.strip_prefix(key).and_then(|text| text.strip_prefix(": "));
    rest.unwrap_or(text).to_owned()
}
