use std::collections::BTreeMap;
use std::fmt::Write;

use super::*;
use crate::app::{self, Running};
use crate::config::Change as Effect;

/// Writes a certificate that expires in `year`, and its key.
fn write(folder: &Path, year: i32) {
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(["localhost".to_owned()]).unwrap();
    params.not_after = rcgen::date_time_ymd(year, 1, 1);
    std::fs::write(folder.join("server.pem"), params.self_signed(&key).unwrap().pem()).unwrap();
    std::fs::write(folder.join("server.key"), key.serialize_pem()).unwrap();
}

async fn start(sources: Sources) -> (Running, Reloader) {
    let mut running = app::start(config::load(&sources).unwrap()).await.unwrap();
    let reloader = running
        .reloader
        .take()
        .unwrap()
        .from(sources, None, &Arc::default());
    (running, reloader)
}

fn flags(folder: &Path) -> Sources {
    let set = [
        format!("tls.certificate={}", folder.join("server.pem").display()),
        format!("tls.private_key={}", folder.join("server.key").display()),
        "listen.addresses=127.0.0.1:0".to_owned(),
        "admin.address=127.0.0.1:0".to_owned(),
        "upstream.servers=127.0.0.1:1".to_owned(),
    ];
    Sources {
        set: set.to_vec(),
        ..Sources::default()
    }
}

/// The year in which the certificate in effect expires, and how many reloads were done and refused.
fn seen(running: &Running) -> (i64, [f64; 2]) {
    let text = running.metrics().render(running.door().snapshot()).unwrap();
    let value = |series: &str| -> f64 {
        let line = text.lines().find_map(|line| line.strip_prefix(series));
        line.unwrap().trim().parse().unwrap()
    };
    let expiry = value("seawall_certificate_expiry_seconds{name=\"default\"}");
    let reloads =
        ["done", "refused"].map(|word| value(&format!("seawall_reloads_total{{result=\"{word}\"}}")));
    // The first of January.
    (1970 + (expiry / 31_556_952.0).round() as i64, reloads)
}

#[tokio::test]
async fn certificates_are_read_when_they_have_changed_or_when_that_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), 2030);
    let (running, mut reloader) = start(flags(folder.path())).await;
    assert_eq!(seen(&running), (2030, [0.0, 0.0]));
    reloader.look(false).await;
    assert_eq!(seen(&running), (2030, [0.0, 0.0]), "nothing has changed");
    reloader.look(true).await;
    assert_eq!(seen(&running), (2030, [1.0, 0.0]), "it was asked for");
    write(folder.path(), 2031);
    reloader.look(false).await;
    assert_eq!(seen(&running), (2031, [2.0, 0.0]));

    // A renewal that has written one file of two, then the other.
    let key = std::fs::read(folder.path().join("server.key")).unwrap();
    write(folder.path(), 2032);
    let new = std::fs::read(folder.path().join("server.key")).unwrap();
    std::fs::write(folder.path().join("server.key"), key).unwrap();
    reloader.look(false).await;
    assert_eq!(seen(&running), (2031, [2.0, 1.0]));
    reloader.look(false).await;
    assert_eq!(
        seen(&running),
        (2031, [2.0, 1.0]),
        "what was refused is not tried again"
    );
    std::fs::write(folder.path().join("server.key"), new).unwrap();
    reloader.look(false).await;
    assert_eq!(seen(&running), (2032, [3.0, 1.0]));

    std::fs::remove_file(folder.path().join("server.key")).unwrap();
    reloader.look(false).await;
    assert_eq!(seen(&running), (2032, [3.0, 2.0]));
    reloader.look(true).await;
    assert_eq!(seen(&running), (2032, [3.0, 3.0]));
}

#[tokio::test]
async fn files_of_the_brokers_side_are_read_when_they_have_changed() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), 2030);
    let ca = folder.path().join("brokers.pem");
    std::fs::copy(folder.path().join("server.pem"), &ca).unwrap();
    let mut sources = flags(folder.path());
    sources.set.push("upstream.tls.enabled=true".to_owned());
    sources.set.push(format!("upstream.tls.ca={}", ca.display()));
    let (running, mut reloader) = start(sources).await;
    let in_use = || running.parts.house.rules().connector.clone().unwrap();
    let first = in_use();
    reloader.look(false).await;
    assert!(in_use().is(&first), "nothing has changed");
    reloader.look(true).await;
    assert!(in_use().is(&first), "read again, and the same");
    std::fs::write(&ca, "nothing").unwrap();
    reloader.look(false).await;
    assert!(in_use().is(&first), "what is not good changes nothing");
    assert_eq!(seen(&running), (2030, [1.0, 1.0]));
    write(folder.path(), 2031);
    std::fs::copy(folder.path().join("server.pem"), &ca).unwrap();
    reloader.look(false).await;
    assert!(!in_use().is(&first));
    assert_eq!(seen(&running), (2031, [2.0, 1.0]), "all of them together");
}

#[tokio::test]
async fn who_drains_reads_nothing() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), 2030);
    let (running, mut reloader) = start(flags(folder.path())).await;
    running.parts.tasks.drain();
    write(folder.path(), 2031);
    reloader.look(false).await;
    reloader.look(true).await;
    assert_eq!(seen(&running), (2030, [0.0, 0.0]));
}

/// Every key that takes effect on reload, with a value other than that of [`base`].
const CHANGES: &[(&str, &str)] = &[
    ("listen.max_connections", "77"),
    ("listen.trusted_proxies", "[\"192.0.2.0/24\"]"),
    ("tls.certificate", "\"FOLDER/other.pem\""),
    ("tls.private_key", "\"FOLDER/other.key\""),
    ("tls.client_ca", "\"FOLDER/other.pem\""),
    ("tls.client_crl", "[\"FOLDER/list.crl\"]"),
    ("tls.client_crl_expired", "\"accept\""),
    (
        "tls.hosts",
        "[{name = \"a.example\", certificate = \"FOLDER/server.pem\", private_key = \"FOLDER/server.key\"}]",
    ),
    ("tls.resumption.secret_file", "\"FOLDER/secret\""),
    ("handshake.timeout", "\"7s\""),
    ("handshake.max_in_flight", "7"),
    ("handshake.max_waiting", "7"),
    ("handshake.full_rate", "7"),
    ("handshake.full_burst", "7"),
    ("handshake.resumed_rate", "7"),
    ("handshake.resumed_burst", "7"),
    ("connect.timeout", "\"7s\""),
    ("connect.max_size", "\"7KiB\""),
    ("admission.rate", "77"),
    ("admission.burst", "77"),
    ("admission.max_in_flight", "77"),
    ("admission.max_wait", "\"7s\""),
    ("admission.max_held", "7"),
    ("admission.dry_run", "true"),
    ("admission.cost.clean", "7"),
    ("admission.cost.persistent", "7"),
    ("admission.adaptive.enabled", "true"),
    ("admission.adaptive.target_latency", "\"7s\""),
    ("admission.adaptive.min_rate", "7"),
    ("admission.adaptive.max_rate", "7"),
    ("admission.per_source.rate", "7"),
    ("admission.per_source.burst", "7"),
    ("admission.per_source.max_connections", "7"),
    ("admission.per_client.rate", "7"),
    ("admission.per_client.burst", "7"),
    ("admission.bad_credentials.after", "7"),
    ("admission.bad_credentials.first", "\"7s\""),
    ("admission.bad_credentials.most", "\"7m\""),
    (
        "admission.lanes",
        "[{name = \"tablets\", client_id = \"tablet-*\", reserve = 7}]",
    ),
    ("refusal.method", "\"close\""),
    ("refusal.delay", "\"7s\""),
    ("refusal.max_delayed", "7"),
    ("refusal.retry_after", "false"),
    ("refusal.reason_string", "false"),
    ("refusal.server_reference", "\"b.example\""),
    ("upstream.balance", "\"round-robin\""),
    ("upstream.connect_timeout", "\"7s\""),
    ("upstream.connack_timeout", "\"7s\""),
    ("upstream.proxy_protocol", "\"v2\""),
    ("upstream.source_addresses", "[\"127.0.0.7\"]"),
    ("upstream.breaker.failures", "7"),
    ("upstream.breaker.open_for", "\"7s\""),
    ("upstream.breaker.slow_start", "\"7s\""),
    ("relay.keepalive_factor", "7"),
    ("relay.write_timeout", "\"7s\""),
    ("relay.buffer", "\"7KiB\""),
    ("relay.max_age", "\"7h\""),
    ("drain.spread", "\"7s\""),
    ("drain.keep_wills", "true"),
    ("drain.listener", "\"close\""),
    ("admin.token_file", "\"FOLDER/token\""),
    ("admin.tls.certificate", "\"FOLDER/server.pem\""),
    ("admin.tls.private_key", "\"FOLDER/server.key\""),
    ("audit.path", "\"FOLDER/other.jsonl\""),
    ("audit.rotate", "\"7MiB\""),
    ("audit.keep", "7"),
    ("log.level", "\"debug\""),
    ("log.format", "\"json\""),
    ("reload.watch", "true"),
    ("upstream.tls.enabled", "false"),
    ("upstream.tls.ca", "\"FOLDER/other.pem\""),
    ("upstream.tls.server_name", "\"broker.example\""),
    ("upstream.tls.certificate", "\"FOLDER/other.pem\""),
    ("upstream.tls.private_key", "\"FOLDER/other.key\""),
    // The last, for brokers keep their indices: no other process would have those.
    ("upstream.servers", "[\"127.0.0.1:2\", \"127.0.0.1:1\"]"),
];

/// Limits in use everywhere, so that each part of them can change.
fn base(folder: &Path) -> BTreeMap<&'static str, String> {
    write(folder, 2031);
    for name in ["pem", "key"] {
        std::fs::rename(
            folder.join(format!("server.{name}")),
            folder.join(format!("other.{name}")),
        )
        .unwrap();
    }
    write(folder, 2030);
    let settings = [
        ("listen.addresses", "[\"127.0.0.1:0\"]"),
        ("admin.address", "\"127.0.0.1:0\""),
        ("listen.proxy_protocol", "\"optional\""),
        ("listen.trusted_proxies", "[\"10.0.0.0/8\"]"),
        ("tls.certificate", "\"FOLDER/server.pem\""),
        ("tls.private_key", "\"FOLDER/server.key\""),
        ("tls.client_auth", "\"optional\""),
        ("tls.client_ca", "\"FOLDER/server.pem\""),
        ("handshake.full_rate", "100"),
        ("handshake.resumed_rate", "100"),
        ("admission.per_source.rate", "100"),
        ("upstream.servers", "[\"127.0.0.1:1\"]"),
        ("upstream.tls.enabled", "true"),
        ("upstream.tls.ca", "\"FOLDER/server.pem\""),
        ("upstream.tls.certificate", "\"FOLDER/server.pem\""),
        ("upstream.tls.private_key", "\"FOLDER/server.key\""),
        ("audit.path", "\"FOLDER/audit.jsonl\""),
    ];
    settings.map(|(key, value)| (key, value.to_owned())).into()
}

fn file(folder: &Path, settings: &BTreeMap<&str, String>) -> Sources {
    let mut text = String::new();
    for (key, value) in settings {
        writeln!(
            text,
            "{key} = {}",
            value.replace("FOLDER", folder.to_str().unwrap())
        )
        .unwrap();
    }
    let path = folder.join("seawall.toml");
    std::fs::write(&path, text).unwrap();
    Sources {
        file: Some(path),
        ..Sources::default()
    }
}

/// Everything that the parts go by.
fn in_effect(reloader: &Reloader) -> String {
    let Reloader {
        parts,
        tls: Tls { acceptor, .. },
        config,
        ..
    } = reloader;
    let rules = parts.house.rules();
    let tls = (
        acceptor.certificates(),
        acceptor.policy().fingerprint(),
        &rules.connector,
        // What the acceptor was made from, and the log goes by.
        &config.tls,
        (&config.log, config.watch),
        // Who is admitted without a token, and whether that is in the clear.
        (
            parts.access.load().admits(None),
            parts.access.load().tls().is_some(),
        ),
    );
    // The gate as a whole tells the time: the limits in it alone.
    let gate = format!("{:?}", parts.gate);
    let words: Vec<&str> = gate.split([' ', ',']).collect();
    let limits = [
        "max_in_flight:",
        "max_waiting:",
        "rate:",
        "burst:",
        "max_connections:",
    ];
    let gate: Vec<_> = words
        .windows(2)
        .filter(|pair| limits.contains(&pair[0]))
        .collect();
    format!(
        "{:?}\n{:?}\n{:?}\n{:?}\n{gate:?}\n{:?}\n{tls:?}\n{:?}\n{:?}",
        (rules.connection, rules.relay, rules.drain),
        (&rules.proxy_header, &rules.refusal),
        &rules.upstream,
        parts.door.settings(),
        parts.places.most(),
        parts.house.telemetry().audit().map(|audit| audit.settings()),
        parts.metrics.upstreams(),
    )
}

fn revocation_list() -> String {
    let mut params = rcgen::CertificateParams::default();
    params.key_usages = vec![rcgen::KeyUsagePurpose::CrlSign];
    let issuer = rcgen::CertifiedIssuer::self_signed(params, rcgen::KeyPair::generate().unwrap()).unwrap();
    let list = rcgen::CertificateRevocationListParams {
        this_update: rcgen::date_time_ymd(2020, 1, 1),
        next_update: rcgen::date_time_ymd(2999, 1, 1),
        crl_number: rcgen::SerialNumber::from(1),
        issuing_distribution_point: None,
        revoked_certs: Vec::new(),
        key_identifier_method: rcgen::KeyIdMethod::Sha256,
    };
    list.signed_by(&issuer).unwrap().pem().unwrap()
}

#[tokio::test]
async fn every_key_that_may_change_takes_effect_as_after_a_restart() {
    for key in config::keys().iter().filter(|key| key.change == Effect::OnReload) {
        let listed = CHANGES.iter().any(|(path, _)| *path == key.path);
        assert!(listed, "{} needs a row in the table", key.path);
    }
    let folder = tempfile::tempdir().unwrap();
    let base = base(folder.path());
    std::fs::write(folder.path().join("secret"), "0123456789abcdef".repeat(4)).unwrap();
    std::fs::write(folder.path().join("token"), "0123456789abcdef").unwrap();
    for secret in ["secret", "token"] {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(folder.path().join(secret), mode).unwrap();
    }
    std::fs::write(folder.path().join("list.crl"), revocation_list()).unwrap();
    let (_running, mut reloader) = start(file(folder.path(), &base)).await;
    for (key, value) in CHANGES {
        let before = in_effect(&reloader);
        let mut settings = base.clone();
        settings.insert(key, (*value).to_owned());
        // A key and its certificate go together.
        if let "tls.certificate" | "tls.private_key" = *key {
            settings.insert("tls.certificate", "\"FOLDER/other.pem\"".to_owned());
            settings.insert("tls.private_key", "\"FOLDER/other.key\"".to_owned());
        }
        if let "upstream.tls.certificate" | "upstream.tls.private_key" = *key {
            settings.insert("upstream.tls.certificate", "\"FOLDER/other.pem\"".to_owned());
            settings.insert("upstream.tls.private_key", "\"FOLDER/other.key\"".to_owned());
        }
        if let "admin.tls.certificate" | "admin.tls.private_key" = *key {
            settings.insert("admin.tls.certificate", "\"FOLDER/server.pem\"".to_owned());
            settings.insert("admin.tls.private_key", "\"FOLDER/server.key\"".to_owned());
        }
        let sources = file(folder.path(), &settings);
        reloader.look(true).await;
        let after = in_effect(&reloader);
        assert_ne!(before, after, "{key} has no effect");

        // As a process has it that starts with the same file, but for the audit log, which has one writer. Brokers keep
        // their indices, so that those of a new list are others.
        if *key != "upstream.servers" {
            let mut config = config::load(&sources).unwrap();
            let audit = config.audit.take();
            let mut fresh = app::start(config).await.unwrap();
            let expected = in_effect(&fresh.reloader.take().unwrap());
            let expected = expected.replace("\nNone\n", &format!("\n{audit:?}\n"));
            assert_eq!(after, expected, "{key}");
            fresh.parts.tasks.stop();
        }

        file(folder.path(), &base);
        reloader.look(true).await;
        if *key != "upstream.servers" {
            assert_eq!(in_effect(&reloader), before, "{key} does not go back");
        }
    }
}
