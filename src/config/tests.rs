//! Hostile and ordinary configurations through the front door. What a file of its own can show is in `tests/config`.

#![allow(
    clippy::float_cmp,
    reason = "what was written is what must be read, to the bit"
)]

use std::ffi::{OsStr, OsString};
use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

use proptest::prelude::*;

use super::kind::{Parsed, Switch};
use super::layer::{Layer, Places};
use super::reader::{Reader, Stage};
use super::{Change, Config, Key, Mistake, Mistakes, Place, Sources, check, keys, load};
use crate::upstream::Endpoint;

/// The keys that must be set.
const REQUIRED: [&str; 3] = [
    "tls.certificate=c.pem",
    "tls.private_key=k.pem",
    "upstream.servers=127.0.0.1:1883",
];

fn flags(set: &[&str]) -> Sources {
    Sources {
        set: REQUIRED.iter().chain(set).map(ToString::to_string).collect(),
        ..Sources::default()
    }
}

fn variables(environment: &[(&str, &str)]) -> Sources {
    let environment = environment
        .iter()
        .map(|(name, value)| (OsString::from(name), OsString::from(value)));
    Sources {
        environment: environment.collect(),
        ..flags(&[])
    }
}

fn load_file(text: impl AsRef<[u8]>) -> Result<Config, Mistakes> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("seawall.toml");
    std::fs::write(&path, text).unwrap();
    load(&Sources {
        file: Some(path),
        ..flags(&[])
    })
}

/// The only mistake.
#[track_caller]
fn mistake(result: Result<Config, Mistakes>) -> super::Mistake {
    let mistakes = result.expect_err("a mistake");
    let all: Vec<_> = mistakes.iter().cloned().collect();
    assert_eq!(all.len(), 1, "{mistakes}");
    all[0].clone()
}

#[test]
fn the_defaults_are_those_of_the_contract() {
    let config = load(&flags(&[])).unwrap();
    assert_eq!(config.listen.addresses, ["0.0.0.0:8883".parse().unwrap()]);
    assert_eq!(config.listen.backlog, 4096);
    assert_eq!(config.listen.max_connections, None);
    assert_eq!(config.listen.proxy_header.mode, crate::proxy_header::Mode::Off);
    assert!(config.listen.proxy_header.trusted.is_empty());
    assert_eq!(config.tls.certificate, PathBuf::from("c.pem"));
    assert_eq!(config.tls.private_key, PathBuf::from("k.pem"));
    assert_eq!(config.tls.min_version, crate::tls::MinVersion::V1_2);
    assert!(config.tls.alpn.is_empty());
    assert_eq!(config.tls.client_auth, crate::tls::ClientAuth::None);
    assert_eq!(config.tls.max_record, 4096);
    assert!(config.tls.hosts.is_empty());
    let resumption = config.tls.resumption.expect("enabled");
    assert_eq!(resumption.secret_file, None);
    assert_eq!(resumption.rotation, Duration::from_hours(6));
    assert_eq!(resumption.lifetime, Duration::from_hours(24));
    assert_eq!(resumption.tickets, 2);
    assert_eq!(config.connection.handshake_timeout, Duration::from_secs(15));
    assert_eq!((config.gate.max_in_flight, config.gate.max_waiting), (64, 4096));
    assert_eq!((config.gate.full, config.gate.resumed), (None, None));
    assert_eq!(config.sources, crate::admission::sources::Settings::default());
    assert_eq!(config.connection.connect_timeout, Duration::from_secs(15));
    assert_eq!(config.connection.connect_max_size, 262_144);
    assert_eq!((config.admission.rate, config.admission.burst), (200.0, 200.0));
    assert_eq!(config.admission.max_in_flight, 100);
    assert_eq!(config.admission.max_wait, Duration::ZERO);
    assert_eq!(config.admission.max_held, 10_000);
    assert!(!config.admission.dry_run);
    assert_eq!(
        (config.admission.cost.clean, config.admission.cost.persistent),
        (1.0, 1.0)
    );
    assert_eq!(config.refusal.method, crate::refusal::Method::Connack);
    assert!(config.refusal.reason_string);
    assert_eq!(config.upstream.connect_timeout, Duration::from_secs(3));
    assert_eq!(config.upstream.connack_timeout, Duration::from_secs(30));
    assert_eq!(config.upstream.proxy_header, None);
    assert_eq!(config.upstream.balance, crate::upstream::pick::Balance::ClientId);
    // Those that the core states for itself are the same.
    assert_eq!(config.admission, crate::admission::Settings::default());
    assert_eq!(config.relay.keepalive_factor, 1.5);
    assert_eq!(config.relay.write_timeout, Duration::from_secs(30));
    assert_eq!(config.relay.buffer, 16_384);
    assert_eq!(config.admin.address, "127.0.0.1:9883".parse().unwrap());
    assert_eq!(config.log.level, "info");
    assert_eq!(config.log.format, crate::telemetry::log::Format::Text);
}

#[test]
fn a_burst_of_zero_is_a_second_of_the_rate_and_at_least_one() {
    for (rate, burst, expected) in [
        ("500", "0", 500.0),
        ("0.2", "0", 1.0),
        ("1", "0", 1.0),
        ("500", "7", 7.0),
        ("1.5", "0.0", 1.5),
    ] {
        let set = [
            format!("admission.rate={rate}"),
            format!("admission.burst={burst}"),
        ];
        let config = load(&flags(&[&set[0], &set[1]])).unwrap();
        assert_eq!(config.admission.burst, expected, "{rate} {burst}");
    }
}

#[test]
fn a_rate_of_zero_is_no_limit_and_a_burst_of_zero_a_second_of_it() {
    for (rate, burst, expected) in [
        ("0", "0", None),
        ("0", "7", None),
        ("500", "0", Some((500.0, 500.0))),
        ("0.2", "0", Some((0.2, 1.0))),
        ("1.5", "0", Some((1.5, 1.5))),
        ("500", "7", Some((500.0, 7.0))),
    ] {
        let set: Vec<String> = [
            ("handshake.full", "_"),
            ("handshake.resumed", "_"),
            ("admission.per_source", "."),
        ]
        .iter()
        .flat_map(|(path, dot)| {
            [
                format!("{path}{dot}rate={rate}"),
                format!("{path}{dot}burst={burst}"),
            ]
        })
        .collect();
        let config = load(&flags(&set.iter().map(String::as_str).collect::<Vec<_>>())).unwrap();
        let budgets =
            [config.gate.full, config.gate.resumed].map(|budget| budget.map(|it| (it.rate, it.burst)));
        assert_eq!(budgets, [expected, expected], "{rate} {burst}");
        let source = config.sources.rate.map(|it| (it.rate, it.burst));
        assert_eq!(source, expected, "{rate} {burst}");
    }
}

#[test]
fn who_trusts_everybody_has_to_say_so() {
    let set = |value| flags(&["listen.proxy_protocol=required", value]);
    let config = load(&set("listen.trusted_proxies=0.0.0.0/0,::/0")).unwrap();
    let trusted = ["0.0.0.0/0".parse().unwrap(), "::/0".parse().unwrap()];
    assert_eq!(config.listen.proxy_header.trusted, trusted);
    let nobody = mistake(load(&set("listen.trusted_proxies=")));
    assert_eq!(nobody.path, "listen.trusted_proxies");
    // A list for later is no mistake.
    assert!(load(&flags(&["listen.trusted_proxies=10.0.0.0/8"])).is_ok());
    // What is mistaken anyway is reported once.
    let mistyped = mistake(load(&set("listen.trusted_proxies=10.0.0.0")));
    assert_eq!(mistyped.path, "listen.trusted_proxies[0]");
}

#[test]
fn servers_are_what_they_look_like() {
    for (text, expected) in [
        (
            "127.0.0.1:1883",
            Endpoint::Address("127.0.0.1:1883".parse().unwrap()),
        ),
        ("[::1]:65535", Endpoint::Address("[::1]:65535".parse().unwrap())),
        (
            "[fe80::1%2]:1",
            Endpoint::Address("[fe80::1%2]:1".parse().unwrap()),
        ),
        ("broker:1", Endpoint::Name("broker".to_owned(), 1)),
        (
            "my_broker-0.mqtt.svc.:1883",
            Endpoint::Name("my_broker-0.mqtt.svc.".to_owned(), 1883),
        ),
        ("4.broker4:1883", Endpoint::Name("4.broker4".to_owned(), 1883)),
        (
            "unix:/run/a b:c,d.sock",
            Endpoint::Unix("/run/a b:c,d.sock".into()),
        ),
    ] {
        let config = load_file(format!("upstream.servers = [{text:?}]")).map(|config| config.upstream);
        // The flag of the required keys beats the file: take it from a file alone.
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s.toml");
        std::fs::write(&path, format!("upstream.servers = [{text:?}]\n")).unwrap();
        let mut sources = flags(&[]);
        sources.set.truncate(2);
        sources.file = Some(path);
        let server = load(&sources).unwrap().upstream.servers.remove(0);
        assert_eq!((server.name.as_str(), server.endpoint), (text, expected));
        assert!(config.is_ok());
    }
}

#[test]
fn a_byte_order_mark_and_carriage_returns_are_no_mistake() {
    let config = load_file("\u{feff}[admission]\r\nrate = 5\r\n\r\n# comment\r\nburst = 6\r\n").unwrap();
    assert_eq!((config.admission.rate, config.admission.burst), (5.0, 6.0));

    let mistake = mistake(load_file("\u{feff}[admission]\r\nrate = \"ä\"\r\n"));
    let Some(Place::Line {
        line,
        column,
        width,
        source,
        ..
    }) = mistake.place
    else {
        panic!("{mistake:?}")
    };
    assert_eq!((line, column, width, source.as_str()), (2, 8, 3, "rate = \"ä\""));
    let first = self::mistake(load_file("\u{feff}rat = 5"));
    assert!(first.to_string().contains(":1:1: rat:"), "{first}");
}

#[test]
fn columns_count_characters() {
    let mistake = mistake(load_file(
        "admission = { \"dry_run\" = false, rate = \"日本語\" } # ü\n",
    ));
    assert_eq!(
        mistake.to_string().lines().skip(1).take(3).collect::<Vec<_>>(),
        [
            "   |",
            " 1 | admission = { \"dry_run\" = false, rate = \"日本語\" } # ü",
            "   |                                         ^^^^^"
        ]
    );
}

#[test]
fn what_is_no_text_file_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let named = |name: &str| folder.path().join(name);
    std::fs::write(named("latin"), b"# fine\n[log]\nlevel = \"\xe4\"\n").unwrap();
    std::fs::write(named("huge"), vec![b'#'; (1 << 20) + 1]).unwrap();
    std::fs::write(named("nul"), b"[log]\0\n").unwrap();
    std::os::unix::fs::symlink(named("circle"), named("circle")).unwrap();
    for (path, message) in [
        (named("missing.toml"), "can't be read: No such file or directory"),
        (folder.path().to_owned(), "can't be read: it is a folder"),
        (named("latin"), "not UTF-8: line 3, byte 22"),
        (named("huge"), "can't be read: it has more than 1 MiB"),
        (
            named("circle"),
            "can't be read: Too many levels of symbolic links",
        ),
        (named("latin").join("x"), "can't be read: Not a directory"),
        (PathBuf::from("/dev/zero"), "can't be read: it is a device"),
        (PathBuf::from("a\0b"), "can't be read"),
        (named("nul"), "unexpected"),
    ] {
        let mistakes = load(&Sources {
            file: Some(path.clone()),
            ..Sources::default()
        })
        .unwrap_err();
        let only = mistakes.iter().next().unwrap();
        assert_eq!(mistakes.iter().count(), 1, "{mistakes}");
        assert!(
            only.to_string().contains(message) || message == "unexpected",
            "{}: {only}",
            path.display()
        );
    }
    let largest = format!("{}\n", "#".repeat((1 << 20) - 1));
    assert!(load_file(largest).is_ok());
}

#[test]
fn a_file_without_permission_says_so() {
    use std::os::unix::fs::PermissionsExt;

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("secret.toml");
    std::fs::write(&path, "").unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o000)).unwrap();
    let result = load(&Sources {
        file: Some(path),
        ..flags(&[])
    });
    if rustix::process::geteuid().is_root() {
        assert!(result.is_ok(), "root may read everything");
    } else {
        assert!(mistake(result).found.contains("Permission denied"));
    }
}

#[test]
fn text_is_read_as_the_file_would_be() {
    for (set, path, shown) in [
        ("admission.rate=1_000", "admission.rate", "1000"),
        ("admission.rate= 5e2 ", "admission.rate", "500"),
        ("admission.rate=0.25", "admission.rate", "0.25"),
        (" admission . rate = 7", "admission.rate", "7"),
        ("listen.backlog=0x10", "listen.backlog", "16"),
        ("admission.dry_run=true", "admission.dry_run", "true"),
        ("connect.timeout=90s", "connect.timeout", "\"90s\""),
        ("connect.timeout=60000ms", "connect.timeout", "\"1m\""),
        ("connect.max_size=1048576B", "connect.max_size", "\"1MiB\""),
        ("tls.min_version=1.3", "tls.min_version", "\"1.3\""),
        ("tls.alpn=mqtt, x", "tls.alpn", "[\"mqtt\", \"x\"]"),
        ("tls.alpn=", "tls.alpn", "[]"),
        ("tls.client_ca=", "tls.client_ca", "\"\""),
        ("tls.certificate=/a=b,c.pem", "tls.certificate", "\"/a=b,c.pem\""),
        (
            "log.level=info,seawall::tls=trace",
            "log.level",
            "\"info,seawall::tls=trace\"",
        ),
        (
            "listen.addresses=0.0.0.0:1,[::]:2",
            "listen.addresses",
            "[\"0.0.0.0:1\", \"[::]:2\"]",
        ),
    ] {
        let config = load(&flags(&[set])).unwrap_or_else(|mistakes| panic!("{set}: {mistakes}"));
        let key = config.keys().iter().find(|key| key.path == path).unwrap();
        assert_eq!(key.value.to_string(), shown, "{set}");
        assert_eq!(key.place, Some(Place::Flag(set.to_owned())));
    }
}

#[test]
fn text_that_is_wrong_says_why() {
    for (set, found, hint) in [
        ("admission.rate=0123", "found 0123", ""),
        ("admission.rate=\"5\"", "found \"5\"", ""),
        ("admission.rate=", "found nothing", ""),
        ("admission.rate=inf", "found inf", ""),
        ("admission.rate=nan", "found nan", ""),
        ("admission.rate=1,5", "found 1,5", ""),
        ("admission.rate=5 # fast", "found 5 # fast", ""),
        ("admission.dry_run=yes", "found yes", ""),
        ("admission.dry_run=True", "found True", ""),
        ("connect.timeout=15", "found 15", "the unit is s: \"15s\""),
        (
            "connect.timeout=\"15s\"",
            "found \"15s\"",
            "without the inner quotes",
        ),
        (
            "refusal.method=\"close\"",
            "found \"close\"",
            "without the inner quotes",
        ),
        ("listen.addresses=", "found 0 entries", ""),
        (
            "listen.addresses=[\"0.0.0.0:8883\"]",
            "found [\"0.0.0.0:8883\"]",
            "",
        ),
        ("listen.addresses=0.0.0.0:1,,0.0.0.0:2", "found nothing", ""),
        (
            "admission=5",
            "found 5",
            "its keys are set one by one: admission.KEY",
        ),
        ("admission.rate.x=5", "found a table", ""),
        (
            "admission.",
            "no key and value",
            "such as --set admission.rate=500",
        ),
        ("=5", "no key and value", "such as --set admission.rate=500"),
        ("", "no key and value", "such as --set admission.rate=500"),
        ("admission.=5", "no key of this name", ""),
        (".admission.rate=5", "no table of this name", ""),
        (
            "Admission.Rate=5",
            "no table of this name",
            "did you mean admission?",
        ),
        ("admission.rate\u{1b}[31m=5", "no key of this name", ""),
    ] {
        let mistake = mistake(load(&flags(&[set])));
        assert_eq!(
            (mistake.found.as_str(), mistake.hint.as_deref().unwrap_or("")),
            (found, hint),
            "{set}"
        );
        assert_eq!(mistake.place, Some(Place::Flag(set.to_owned())));
        assert!(!mistake.to_string().contains('\u{1b}'));
    }
}

#[test]
fn a_path_of_any_depth_is_a_mistake_and_no_more() {
    let deep = format!("admission.{}=1", "a.".repeat(100_000));
    assert_eq!(mistake(load(&flags(&[&deep]))).found, "no key of this name");
    let name = format!("SEAWALL_ADMISSION{}", "__A".repeat(100_000));
    assert_eq!(
        mistake(load(&variables(&[(&name, "1")]))).found,
        "no key of this name"
    );
    let lists = format!("tls.alpn = {}{}", "[".repeat(50_000), "]".repeat(50_000));
    assert!(load_file(lists).is_err());
    let tables = format!("[{}]\n", vec!["a"; 50_000].join("."));
    assert!(load_file(tables).is_err());
}

#[test]
fn a_later_flag_beats_an_earlier_one_but_each_is_checked() {
    let config = load(&flags(&["admission.rate=1", "admission.rate=2"])).unwrap();
    assert_eq!(config.admission.rate, 2.0);
    assert_eq!(
        mistake(load(&flags(&["admission.rate=x", "admission.rate=2"]))).found,
        "found x"
    );
}

#[test]
fn variables_set_keys() {
    let config = load(&variables(&[
        ("SEAWALL_ADMISSION__COST__CLEAN", "2"),
        ("SEAWALL_LISTEN__ADDRESSES", "127.0.0.1:1,127.0.0.1:2"),
        ("SEAWALL_REFUSAL__REASON_STRING", "false"),
    ]))
    .unwrap();
    assert_eq!(config.admission.cost.clean, 2.0);
    assert_eq!(config.listen.addresses.len(), 2);
    assert!(!config.refusal.reason_string);
}

#[test]
fn a_password_is_in_no_message_wherever_it_was_written() {
    const URL: &str = "http://:correct-horse@cache";
    let file = load_file(format!("shared_budget = {{ redis = \"{URL}\" }}")).unwrap_err();
    let variable = load(&variables(&[("SEAWALL_SHARED_BUDGET__REDIS", URL)])).unwrap_err();
    let flag = load(&flags(&[&format!("shared_budget.redis={URL}")])).unwrap_err();
    for mistakes in [file, variable, flag] {
        let text = format!("{mistakes}{}", mistakes.in_a_line());
        assert!(
            text.contains("shared_budget.redis") && !text.contains("horse"),
            "{text}"
        );
    }
}

#[test]
fn every_key_has_a_variable() {
    for key in keys() {
        let variable = key.variable();
        let mistakes = load(&variables(&[(&variable, "\u{1}")]));
        // No key takes a control character but the paths.
        match mistakes {
            Ok(_) => assert!(
                key.allowed.contains("path") || key.path == "tls.alpn",
                "{}",
                key.path
            ),
            Err(mistakes) => {
                let mistake = mistakes.iter().next().unwrap();
                assert!(mistake.path.starts_with(&key.path), "{mistake}");
                assert!(matches!(&mistake.place, Some(Place::Variable(name, _)) if *name == variable));
            }
        }
    }
}

#[test]
fn variables_that_are_meant_for_others_are_left_alone() {
    for name in [
        "SEAWALL",
        "SEAWALL_",
        "SEAWALL_HOME",
        "SEAWALL_BIN",
        "SEAWALL_PORT_8883_TCP_ADDR",
        "SEAWALL_SERVICE_HOST",
        // A service that is called seawall-admin.
        "SEAWALL_ADMIN_SERVICE_HOST",
        "SEAWALL_ADMIN_SERVICE_PORT",
        "SEAWALL_ADMIN_SERVICE_PORT_METRICS",
        "SEAWALL_ADMIN_PORT",
        "SEAWALL_ADMIN_PORT_9883_TCP",
        "SEAWALL_ADMIN_PORT_9883_TCP_PROTO",
        "SEAWALL_ADMINISTRATOR",
        "SEAWALL_LISTENER_URL",
        "seawall_admission__rate",
        "XSEAWALL_ADMISSION__RATE",
    ] {
        load(&variables(&[(name, "tcp://10.0.0.1:9883")]))
            .unwrap_or_else(|mistakes| panic!("{name}: {mistakes}"));
    }
}

#[test]
fn variables_that_are_nearly_right_are_mistakes() {
    for (name, path, message) in [
        (
            "SEAWALL_ADMISSION_RATE",
            "admission.rate",
            "SEAWALL_ADMISSION__RATE is the variable of this key",
        ),
        (
            "SEAWALL_ADMISSION_COST_CLEAN",
            "admission.cost.clean",
            "SEAWALL_ADMISSION__COST__CLEAN is",
        ),
        (
            "SEAWALL_ADMISSION_RAET",
            "",
            "two underscores stand between table and key",
        ),
        (
            "SEAWALL_ADMISSION",
            "",
            "two underscores stand between table and key",
        ),
        (
            "SEAWALL_ADMIN_PORTS",
            "",
            "two underscores stand between table and key",
        ),
        (
            "SEAWALL_ADMISSION__RAET",
            "admission.raet",
            "did you mean admission.rate?",
        ),
        ("SEAWALL_ADMISION__RATE", "admision", "did you mean admission?"),
        (
            "SEAWALL_ADMISSION___RATE",
            "admission._rate",
            "did you mean admission.rate?",
        ),
        (
            "SEAWALL__ADMISSION__RATE",
            "_admission",
            "did you mean admission?",
        ),
        ("SEAWALL_FOO__BAR", "foo", "no table of this name"),
        (
            "SEAWALL_Admission__Rate",
            "admission.rate",
            "SEAWALL_ADMISSION__RATE",
        ),
        ("SEAWALL_ADMISSION__COST", "admission.cost", "a table"),
    ] {
        let mistake = mistake(load(&variables(&[(name, "5")])));
        assert_eq!(mistake.path, path, "{name}: {mistake}");
        assert!(mistake.to_string().contains(message), "{name}: {mistake}");
    }
}

#[test]
fn a_variable_that_is_no_text_is_a_mistake() {
    let sources = Sources {
        environment: vec![
            (
                "SEAWALL_TLS__CERTIFICATE".into(),
                OsStr::from_bytes(b"/etc/\xff.pem").into(),
            ),
            (OsStr::from_bytes(b"SEAWALL_\xff").into(), "5".into()),
            (OsStr::from_bytes(b"OTHER\xff").into(), "5".into()),
        ],
        ..flags(&[])
    };
    let mistake = mistake(load(&sources));
    assert_eq!(
        (mistake.path.as_str(), mistake.found.as_str()),
        ("tls.certificate", "the value is not UTF-8")
    );
}

#[test]
fn what_a_higher_source_beats_is_checked_even_so() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.toml");
    std::fs::write(&path, "admission = 5\n[upstream]\nservers = []\n").unwrap();
    let sources = Sources {
        file: Some(path),
        environment: vec![("SEAWALL_ADMISSION__RATE".into(), "5".into())],
        ..flags(&[])
    };
    let mistakes = load(&sources).unwrap_err();
    let paths: Vec<&str> = mistakes.iter().map(|mistake| mistake.path.as_str()).collect();
    assert_eq!(paths, ["admission", "upstream.servers"]);
}

#[test]
fn contradictions_are_placed_where_they_were_written() {
    let mistake = mistake(load(&flags(&["admission.burst=2", "admission.cost.clean=3"])));
    assert_eq!(mistake.path, "admission.cost.clean");
    assert_eq!(
        mistake.place,
        Some(Place::Flag("admission.cost.clean=3".to_owned()))
    );
    // The cost is a default here; what made it wrong is the burst.
    let mistakes = load(&flags(&["admission.burst=0.5"])).unwrap_err();
    assert_eq!(mistakes.iter().count(), 2, "{mistakes}");
    for mistake in mistakes.iter() {
        assert_eq!(mistake.place, Some(Place::Flag("admission.burst=0.5".to_owned())));
    }
}

#[test]
fn client_authentication_is_all_of_its_keys_or_none() {
    use crate::tls::{Authorities, ClientAuth, CrlExpired};
    let authorities = |crl: &[&str], crl_expired| Authorities {
        ca: "ca.pem".into(),
        crl: crl.iter().map(PathBuf::from).collect(),
        crl_expired,
    };
    for (set, expected) in [
        (&["client_auth=none"][..], Ok(ClientAuth::None)),
        (
            &["client_auth=none", "client_ca=", "client_crl="],
            Ok(ClientAuth::None),
        ),
        (
            &["client_auth=optional", "client_ca=ca.pem"],
            Ok(ClientAuth::Optional(authorities(&[], CrlExpired::Reject))),
        ),
        (
            &[
                "client_auth=required",
                "client_ca=ca.pem",
                "client_crl=a,b",
                "client_crl_expired=accept",
            ],
            Ok(ClientAuth::Required(authorities(&["a", "b"], CrlExpired::Accept))),
        ),
        (&["client_auth=required"], Err(&["tls.client_auth"][..])),
        (
            &["client_auth=optional", "client_crl=a"],
            Err(&["tls.client_auth"]),
        ),
        (&["client_ca=ca.pem"], Err(&["tls.client_ca"])),
        (
            &["client_auth=none", "client_ca=ca.pem", "client_crl=a"],
            Err(&["tls.client_ca", "tls.client_crl"]),
        ),
        // One mistake is enough.
        (
            &["client_auth=always", "client_ca=ca.pem"],
            Err(&["tls.client_auth"]),
        ),
    ] {
        let set: Vec<String> = set.iter().map(|set| format!("tls.{set}")).collect();
        let set: Vec<&str> = set.iter().map(String::as_str).collect();
        let found = load(&flags(&set)).map(|config| config.tls.client_auth);
        let found = found.map_err(|mistakes| mistakes.iter().map(|mistake| mistake.path.clone()).collect());
        let expected =
            expected.map_err(|paths: &[&str]| paths.iter().map(ToString::to_string).collect::<Vec<_>>());
        assert_eq!(found, expected, "{set:?}");
    }
}

#[test]
fn only_a_broker_that_is_seawall_itself_is_a_loop() {
    for (listen, server, is_loop) in [
        ("0.0.0.0:8883", "127.0.0.1:8883", true),
        ("127.0.0.1:8883", "127.0.0.1:8883", true),
        ("[::]:8883", "[::1]:8883", true),
        ("0.0.0.0:8883", "127.0.0.1:1883", false),
        ("0.0.0.0:8883", "10.0.0.2:8883", false),
        ("[::]:8883", "127.0.0.1:8883", false),
        ("127.0.0.1:0", "127.0.0.1:1883", false),
        ("127.0.0.1:8883", "localhost:8883", false),
    ] {
        let set = [
            format!("listen.addresses={listen}"),
            format!("upstream.servers={server}"),
        ];
        assert_eq!(
            load(&flags(&[&set[0], &set[1]])).is_err(),
            is_loop,
            "{listen} {server}"
        );
    }
}

#[test]
fn many_mistakes_are_counted_and_not_all_shown() {
    let mut text = String::from("[admission]\n");
    for number in 0..1000 {
        writeln!(text, "x{number} = 1").unwrap();
    }
    let mistakes = load_file(text).unwrap_err();
    assert_eq!(mistakes.iter().count(), 1000);
    let text = mistakes.to_string();
    assert!(text.contains("… and 950 more") && text.ends_with("1000 mistakes in the configuration"));
}

#[test]
fn check_opens_what_load_only_names() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.toml");
    let host =
        "name = \"a.example.com\"\ncertificate = \"/nowhere/a.pem\"\nprivate_key = \"/nowhere/a.key\"\n";
    std::fs::write(&path, format!("[[tls.hosts]]\n{host}")).unwrap();
    let mistakes = check(&Sources {
        file: Some(path),
        ..flags(&[])
    })
    .unwrap_err();
    let of_host: Vec<_> = mistakes.iter().filter(|mistake| mistake.line() != 0).collect();
    assert_eq!(of_host.len(), 2, "{mistakes}");
    assert_eq!(
        (of_host[0].line(), of_host[0].path.as_str()),
        (3, "tls.hosts[0].certificate")
    );
    assert_eq!(
        (of_host[1].line(), of_host[1].path.as_str()),
        (4, "tls.hosts[0].private_key")
    );

    let mistakes = check(&flags(&["tls.certificate=/nowhere/c.pem"])).unwrap_err();
    assert!(
        mistakes
            .to_string()
            .contains("tls.certificate: can't read /nowhere/c.pem"),
        "{mistakes}"
    );
    assert!(
        mistakes
            .iter()
            .all(|mistake| matches!(mistake.place, Some(Place::Flag(_)))),
        "{mistakes}"
    );
}

/// What a list of up to two tables at `a.list`, each with a key that must be set and one that need not be, is read as,
/// and the mistakes in it.
fn read_list(layer: &Layer, places: &Places, stage: Stage) -> (Vec<(PathBuf, bool)>, Vec<Key>, Vec<Mistake>) {
    let name = Parsed {
        allowed: "path",
        parse: |text| Ok(PathBuf::from(text)),
        show: |path: &PathBuf| path.display().to_string(),
    };
    let mut reader = Reader::new(places, stage);
    let list = reader.read(layer, |root| {
        root.table("a", |table| {
            table.tables("list", Change::OnReload, 2, |table| {
                let name = table.required("name", Change::OnReload, &name);
                (name, table.key("switch", Change::OnReload, &Switch, false))
            })
        })
    });
    let (keys, mistakes) = reader.finish();
    (list, keys, mistakes)
}

/// The same of a file, through a merge as `load` does one.
fn read_list_of(text: &str) -> (Vec<(PathBuf, bool)>, Vec<Key>, Vec<Mistake>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.toml");
    std::fs::write(&path, text).unwrap();
    let mut places = Places::default();
    let file = super::file::read(&path, &mut places).unwrap();
    assert!(file.syntax.is_empty(), "{:?}", file.syntax);
    let (_, _, mut mistakes) = read_list(&file.layer, &places, Stage::Layer);
    let merged = super::layer::merge(&[file.layer, Layer::empty()], &["a".to_owned()]).unwrap();
    let (list, keys, more) = read_list(&merged, &places, Stage::Whole);
    mistakes.extend(more);
    let mistakes = Mistakes::of(mistakes).map_or(Vec::new(), |mistakes| mistakes.iter().cloned().collect());
    (list, keys, mistakes)
}

#[test]
fn a_list_of_tables_is_one_key_and_means_the_same_when_printed() {
    let text = "[[a.list]]\nname = \"x\"\n[[a.list]]\nswitch = true\nname = \"y\"\n";
    let (list, keys, mistakes) = read_list_of(text);
    assert_eq!(mistakes, []);
    assert_eq!(list, [("x".into(), false), ("y".into(), true)]);
    assert_eq!(keys.len(), 1);
    assert_eq!(keys[0].path, "a.list");
    assert!(keys[0].in_file_alone);
    assert!(
        matches!(keys[0].place, Some(Place::Line { .. })),
        "{:?}",
        keys[0].place
    );
    let (again, same, mistakes) = read_list_of(&super::keys::to_toml(&keys));
    assert_eq!((again, same, mistakes), (list, keys, Vec::new()));

    let (list, keys, mistakes) = read_list_of("[a]\n");
    assert_eq!((list, mistakes), (Vec::new(), Vec::new()));
    assert_eq!(Some(&keys[0].value), keys[0].default.as_ref());
    assert_eq!(read_list_of("[a]\nlist = []\n").2, []);
}

#[test]
fn mistakes_in_a_list_of_tables_name_the_table() {
    for (text, line, path, found, hint) in [
        (
            "[[a.list]]\nname = \"x\"\n[[a.list]]\nswitch = true\n",
            3,
            "a.list[1].name",
            "must be set",
            "set it in this table of the list",
        ),
        (
            "a.list = [{name = \"x\"}, {}]\n",
            1,
            "a.list[1].name",
            "must be set",
            "set it in this table of the list",
        ),
        (
            "[[a.list]]\nname = \"x\"\nswitch = 5\n",
            3,
            "a.list[0].switch",
            "found 5 (an integer)",
            "",
        ),
        (
            "[[a.list]]\nname = \"x\"\nswich = true\n",
            3,
            "a.list[0].swich",
            "no key of this name",
            "did you mean a.list[0].switch?",
        ),
        (
            "[a.list]\nname = \"x\"\n",
            1,
            "a.list",
            "found a table",
            "its header has double brackets: [[a.list]]",
        ),
        ("a.list = \"x\"\n", 1, "a.list", "found \"x\" (a string)", ""),
        (
            "a.list = [{name = \"x\"},\n5]\n",
            2,
            "a.list[1]",
            "found 5 (an integer)",
            "",
        ),
        (
            "a.list = [{name = \"x\"}, {name = \"y\"}, {name = \"z\"}]\n",
            1,
            "a.list",
            "found 3 tables",
            "",
        ),
    ] {
        let (_, _, mistakes) = read_list_of(text);
        assert_eq!(mistakes.len(), 1, "{text}: {mistakes:?}");
        let mistake = &mistakes[0];
        assert_eq!(
            (
                mistake.line(),
                mistake.path.as_str(),
                mistake.found.as_str(),
                mistake.hint.as_deref().unwrap_or("")
            ),
            (line, path, found, hint),
            "{text}"
        );
    }
}

#[test]
fn text_cannot_set_a_list_of_tables() {
    for path in ["a.list", "a.list.name", "a.list.0.name", "a.list[0].name"] {
        let mut places = Places::default();
        let (layers, mistakes) = super::text::flags(&[format!("{path}=x")], &mut places);
        assert_eq!(mistakes, []);
        let (_, _, mistakes) = read_list(&layers[0], &places, Stage::Layer);
        assert_eq!(mistakes.len(), 1, "{path}: {mistakes:?}");
        let expected = if path.contains('[') {
            "no key of this name"
        } else {
            "can be set in the file alone"
        };
        assert_eq!(mistakes[0].found, expected, "{path}");
        assert!(matches!(mistakes[0].place, Some(Place::Flag(_))));
    }
    let (_, keys, _) = read_list(&Layer::empty(), &Places::default(), Stage::Layer);
    for name in [
        "SEAWALL_A_LIST",
        "SEAWALL_A__LIST",
        "SEAWALL_A__LIST__NAME",
        "SEAWALL_A__LIST__0__NAME",
    ] {
        let mut places = Places::default();
        let environment = [(OsString::from(name), OsString::from("x"))];
        let (layers, mut mistakes) = super::text::variables(&environment, &keys, &mut places);
        for layer in layers {
            mistakes.extend(read_list(&layer, &places, Stage::Layer).2);
        }
        assert_eq!(mistakes.len(), 1, "{name}: {mistakes:?}");
        assert_eq!(
            (mistakes[0].path.as_str(), mistakes[0].found.as_str()),
            ("a.list", "can be set in the file alone")
        );
        assert!(matches!(mistakes[0].place, Some(Place::Variable(..))));
    }
}

fn any_toml() -> impl Strategy<Value = String> {
    let scalar = prop_oneof![
        any::<i64>().prop_map(|value| value.to_string()),
        any::<f64>().prop_map(|value| format!("{value:?}").replace("NaN", "nan")),
        any::<bool>().prop_map(|value| value.to_string()),
        "[ -~]{0,12}".prop_map(|value| format!("{value:?}").replace("\\'", "'")),
        "[0-9]{1,4}(us|ms|s|m|h|d|B|KiB|MiB|GiB)".prop_map(|value| format!("\"{value}\"")),
        Just("1979-05-27T07:32:00Z".to_owned()),
        "[0-9]{1,3}\\.[0-9]{1,3}\\.0\\.1:[0-9]{1,5}".prop_map(|value| format!("\"{value}\"")),
    ];
    scalar.prop_recursive(3, 12, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(|items| format!("[{}]", items.join(", "))),
            inner.prop_map(|value| format!("{{ a = {value} }}")),
        ]
    })
}

proptest! {
    /// Whatever value a key has: it is taken, and means the same when printed, or it is a mistake of that line.
    #[test]
    fn a_value_is_legal_or_a_mistake_at_its_line(index in any::<prop::sample::Index>(), value in any_toml()) {
        let keys = keys();
        let key = index.get(&keys);
        let text = format!("\n{} = {value}\n", key.path);
        // The value in the file is the only one of its key.
        let mut sources = flags(&[]);
        sources.set.retain(|set| !set.starts_with(&format!("{}=", key.path)));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s.toml");
        std::fs::write(&path, &text).unwrap();
        match load(&Sources { file: Some(path.clone()), ..sources.clone() }) {
            Ok(config) => {
                std::fs::write(&path, config.to_toml()).unwrap();
                let again = load(&Sources { file: Some(path), ..Sources::default() });
                prop_assert_eq!(again.as_ref().ok(), Some(&config), "{}\n{:?}", text, again);
            }
            Err(mistakes) => {
                for mistake in mistakes.iter() {
                    let at_line = matches!(&mistake.place, Some(Place::Line { line: 2, .. }));
                    prop_assert!(at_line, "{}: {}", text, mistake);
                }
            }
        }
    }

    /// Bytes are no reason to panic, nor is a mistake without words.
    #[test]
    fn garbage_is_a_mistake(bytes in prop::collection::vec(any::<u8>(), 0..200), text in "[\\[\\]{}=\"'a-z.,# \n0-9]{0,200}") {
        for garbage in [bytes.as_slice(), text.as_bytes()] {
            if let Err(mistakes) = load_file(garbage) {
                prop_assert!(mistakes.iter().all(|mistake| !mistake.found.is_empty()));
                prop_assert!(mistakes.to_string().chars().all(|c| c == '\n' || !c.is_control()), "control character");
            }
        }
    }

    /// The same for names and values of variables and flags.
    #[test]
    fn garbage_in_text_is_a_mistake(name in "[A-Z_]{0,20}", value in ".{0,40}", set in ".{0,40}") {
        let mut sources = flags(&[&set]);
        sources.environment.push((format!("SEAWALL_{name}").into(), value.into()));
        if let Err(mistakes) = load(&sources) {
            prop_assert!(mistakes.iter().all(|mistake| !mistake.found.is_empty()));
        }
    }
}
