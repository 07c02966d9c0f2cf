//! One number for the settings that replicas should have in common.

use std::fmt::Write;

use aws_lc_rs::digest::{SHA256, digest};

use super::Config;
use super::keys::Key;

/// The tables that decide who gets in and how; the others are about one machine.
const TABLES: [&str; 8] = [
    "handshake",
    "connect",
    "admission",
    "refusal",
    "relay",
    "drain",
    "tls",
    "upstream",
];

/// Of those tables: files, addresses and names, which may differ from machine to machine.
const OF_ONE_MACHINE: [&str; 10] = [
    "tls.certificate",
    "tls.private_key",
    "tls.client_ca",
    "tls.client_crl",
    "tls.hosts",
    "tls.resumption.secret_file",
    "upstream.servers",
    "upstream.source_addresses",
    "upstream.proxy_protocol",
    "upstream.tls",
];

impl Config {
    /// A hash of the settings that replicas should have in common: the same number, the same settings. It holds no
    /// secret, since none is among those settings.
    pub fn agreement(&self) -> u32 {
        let mut said = String::new();
        for key in self.keys.iter().filter(|key| is_common(key)) {
            // Writing to a String cannot fail.
            let _ = writeln!(said, "{} = {}", key.path, key.value);
        }
        let hash = digest(&SHA256, said.as_bytes());
        hash.as_ref()
            .iter()
            .take(4)
            .fold(0, |number, byte| number << 8 | u32::from(*byte))
    }
}

fn is_common(key: &Key) -> bool {
    let is_of_one_machine = OF_ONE_MACHINE
        .iter()
        .any(|prefix| key.path == *prefix || key.path.starts_with(&format!("{prefix}.")));
    TABLES.contains(&key.outermost()) && !is_of_one_machine
}

#[cfg(test)]
mod tests {
    use crate::config::{self, Sources};

    fn agreement(set: &[&str]) -> u32 {
        let needed = ["tls.certificate=a.pem", "tls.private_key=a.key"];
        let set = needed.iter().chain(set).map(ToString::to_string).collect();
        let sources = Sources {
            set,
            ..Sources::default()
        };
        config::load(&sources).unwrap().agreement()
    }

    #[test]
    fn replicas_agree_whose_files_and_addresses_differ_and_nothing_else() {
        let server = "upstream.servers=127.0.0.1:1883";
        let one = agreement(&[server]);
        for same in [
            "tls.certificate=b.pem",
            "listen.addresses=127.0.0.1:1",
            "upstream.servers=broker:1883",
            "log.level=debug",
            "admission.rate=200",
        ] {
            assert_eq!(agreement(&[server, same]), one, "{same}");
        }
        for other in [
            "admission.rate=201",
            "handshake.max_in_flight=65",
            "tls.min_version=1.3",
        ] {
            assert_ne!(agreement(&[server, other]), one, "{other}");
        }
    }
}
