//! `[shared_budget]`.

use super::tls::OPTIONAL_FILE;
use crate::budget::{Server, Settings};
use crate::config::keys::Change::OnRestart;
use crate::config::kind::{Parsed, Secret, Whole};
use crate::config::reader::Table;

/// A Redis server, or none.
const SERVER: Secret<Option<Server>> = Secret {
    exact: Parsed {
        allowed: "redis://[[USER]:PASSWORD@]HOST[:PORT][/DATABASE], rediss://… for TLS, unix:///PATH, or \"\" for none",
        parse: |url| match url {
            "" => Ok(None),
            url => Server::parse(url)
                .map(Some)
                .map_err(|_| (!url.contains("://")).then(|| "with the scheme: \"redis://…\"".to_owned())),
        },
        show: |server| {
            server
                .as_ref()
                .map_or_else(String::new, |server| server.url().to_owned())
        },
    },
    mask: |server| server.as_ref().map_or_else(String::new, Server::masked),
};

/// The name of a table.
const KEY: Parsed<String> = Parsed {
    allowed: "1 to 128 letters, digits, and any of . _ : -",
    parse: |text| {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._:-".contains(&byte);
        if (1..=128).contains(&text.len()) && text.bytes().all(allowed) {
            Ok(text.to_owned())
        } else {
            Err(None)
        }
    },
    show: String::clone,
};

pub(super) fn table(table: &mut Table<'_, '_>) -> Option<Settings> {
    // None: a process alone has the whole of its rate.
    let server = table.key("redis", OnRestart, &SERVER, None);
    // One table for all who name no other.
    let key = table.key("key", OnRestart, &KEY, "seawall".to_owned());
    // Those that the system trusts: for rediss: alone.
    let ca = table.key("ca", OnRestart, &OPTIONAL_FILE, None);
    // 1: the whole, until Redis has said otherwise. 1,000 is more than any fleet of proxies.
    let replicas = table.key(
        "replicas",
        OnRestart,
        &Whole {
            least: 1,
            most: 1_000,
        },
        1,
    ) as u32;
    server.map(|server| Settings {
        server,
        key,
        ca,
        replicas,
    })
}
