//! `[tls]`.

use std::path::PathBuf;
use std::time::Duration;

use super::super::keys::Change::{OnReload, OnRestart};
use super::super::kind::{Choice, Parsed, Switch, Whole};
use super::super::list::List;
use super::super::quantity::{Size, Span};
use super::super::reader::Table;
use super::KIB;
use crate::tls::{Authorities, ClientAuth, CrlExpired, Host, HostName, MinVersion, Settings, ticket};

/// A PEM file.
const FILE: Parsed<PathBuf> = Parsed {
    allowed: "path of a PEM file",
    parse: path,
    show: |path| path.display().to_string(),
};

/// A PEM file or none.
pub(super) const OPTIONAL_FILE: Parsed<Option<PathBuf>> = Parsed {
    allowed: "path of a PEM file, or \"\" for none",
    parse: optional_path,
    show: show_optional_path,
};

/// A ticket secret.
const SECRET_FILE: Parsed<Option<PathBuf>> = Parsed {
    allowed: "path of a file with 32 random bytes or more (raw, hexadecimal or base64), or \"\"",
    parse: optional_path,
    show: show_optional_path,
};

/// A revocation list.
const REVOCATION_LIST: Parsed<PathBuf> = Parsed {
    allowed: "path of a revocation list in PEM or DER",
    parse: path,
    show: |path| path.display().to_string(),
};

/// RFC 7301 section 3.1: a name has 1 to 255 bytes.
const ALPN: Parsed<String> = Parsed {
    allowed: "protocol name of 1 to 255 bytes such as \"mqtt\"",
    parse: alpn,
    show: String::clone,
};

const HOST_NAME: Parsed<HostName> = Parsed {
    allowed: "a name such as \"mqtt.example.com\" or \"*.example.com\"",
    parse: |text| HostName::parse(text).map_err(|error| Some(error.to_string())),
    show: ToString::to_string,
};

/// Certificates besides the default: each is read at start and at each change, and that takes a millisecond.
const MOST_HOSTS: usize = 256;

pub(super) fn table(table: &mut Table<'_, '_>) -> Settings {
    let versions = Choice(&[("1.2", MinVersion::V1_2), ("1.3", MinVersion::V1_3)]);
    let protocols = List {
        item: ALPN,
        least: 0,
        most: 16,
    };
    // RFC 8446 section 5.1: a record carries up to 2^14 bytes. Below 64 more than a third of what is sent is overhead.
    let records = Size {
        least: 64,
        most: 16 * KIB,
    };
    Settings {
        certificate: table.required("certificate", OnReload, &FILE),
        private_key: table.required("private_key", OnReload, &FILE),
        // 1.2: most firmware in the field has nothing newer.
        min_version: table.key("min_version", OnRestart, &versions, MinVersion::V1_2),
        // Empty: a device that offers a wrong name is still a device.
        alpn: table.key("alpn", OnRestart, &protocols, Vec::new()),
        client_auth: client_auth(table),
        // 4 KiB: the receive buffer that small devices have; larger records would save half a percent of the bytes.
        max_record: table.key("max_record", OnRestart, &records, 4 * KIB) as usize,
        hosts: table.tables("hosts", OnReload, MOST_HOSTS, |table| Host {
            name: table.required("name", OnReload, &HOST_NAME),
            certificate: table.required("certificate", OnReload, &FILE),
            private_key: table.required("private_key", OnReload, &FILE),
        }),
        resumption: table.table("resumption", resumption),
    }
}

fn resumption(table: &mut Table<'_, '_>) -> Option<ticket::Settings> {
    // A key for less than a second would seal a handful of tickets. RFC 8446 section 4.6.1: seven days are the most.
    let span = Span {
        least: Duration::from_secs(1),
        most: Duration::from_hours(7 * 24),
    };
    let enabled = table.key("enabled", OnRestart, &Switch, true);
    let settings = ticket::Settings {
        // Empty: no secret can be a default. What that costs is said at the start.
        secret_file: table.key("secret_file", OnReload, &SECRET_FILE, None),
        // 6 h: far from the 2^32 tickets that one key of AES-GCM may seal, even at 20,000 a second.
        rotation: table.key("rotation", OnRestart, &span, Duration::from_hours(6)),
        // 24 h: a device that reports once a day is resumed; a stolen ticket is good for no longer.
        lifetime: table.key("lifetime", OnRestart, &span, Duration::from_hours(24)),
        // 2: a client of TLS 1.3 uses a ticket once, and burns one for each refused attempt.
        tickets: table.key("tickets", OnRestart, &Whole { least: 0, most: 4 }, 2) as usize,
    };
    enabled.then_some(settings)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    None,
    Optional,
    Required,
}

fn client_auth(table: &mut Table<'_, '_>) -> ClientAuth {
    let modes = Choice(&[
        ("none", Mode::None),
        ("optional", Mode::Optional),
        ("required", Mode::Required),
    ]);
    // 64: several authorities, each with its own list.
    let lists = List {
        item: REVOCATION_LIST,
        least: 0,
        most: 64,
    };
    let expired = Choice(&[("reject", CrlExpired::Reject), ("accept", CrlExpired::Accept)]);
    // None: most fleets log in with a name and a password.
    let mode = table.key("client_auth", OnRestart, &modes, Mode::None);
    let ca = table.key("client_ca", OnReload, &OPTIONAL_FILE, None);
    let crl = table.key("client_crl", OnReload, &lists, Vec::new());
    // Reject: a list that nobody renews says nothing of what was revoked since.
    let crl_expired = table.key("client_crl_expired", OnReload, &expired, CrlExpired::Reject);
    if mode == Mode::None {
        let hint = "set tls.client_auth to \"optional\" or \"required\"";
        if ca.is_some() {
            table.contradiction(
                "client_ca",
                &["client_auth"],
                "no client is asked for a certificate",
                hint,
            );
        }
        if !crl.is_empty() {
            table.contradiction(
                "client_crl",
                &["client_auth"],
                "no client is asked for a certificate",
                hint,
            );
        }
        return ClientAuth::None;
    }
    let Some(ca) = ca else {
        let found = "no authority is named that could have signed a client's certificate";
        table.contradiction("client_auth", &["client_ca"], found, "set tls.client_ca");
        return ClientAuth::None;
    };
    let authorities = Authorities { ca, crl, crl_expired };
    match mode {
        Mode::Required => ClientAuth::Required(authorities),
        _ => ClientAuth::Optional(authorities),
    }
}

pub(super) fn optional_path(text: &str) -> Result<Option<PathBuf>, Option<String>> {
    if text.is_empty() {
        Ok(None)
    } else {
        path(text).map(Some)
    }
}

#[expect(clippy::ref_option, reason = "a kind shows what it holds, by reference")]
pub(super) fn show_optional_path(path: &Option<PathBuf>) -> String {
    path.as_ref()
        .map_or(String::new(), |path| path.display().to_string())
}

fn path(text: &str) -> Result<PathBuf, Option<String>> {
    if text.trim().is_empty() || text.contains('\0') {
        Err(None)
    } else {
        Ok(PathBuf::from(text))
    }
}

fn alpn(text: &str) -> Result<String, Option<String>> {
    if (1..=255).contains(&text.len()) {
        Ok(text.to_owned())
    } else {
        Err(None)
    }
}
