//! Starting, failing to start, and ending: exit codes and messages.

use crate::rig::daemon::{binary, configuration};
use crate::rig::process::{Finished, run};
use crate::rig::{Connect, Daemon, Device, PATIENCE, Scene, Stub, eventually, packet};
use rustix::process::Signal;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Nobody is dialled before a client comes.
const BROKER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 1883);

fn seawall(arguments: &[&str], environment: &[(&str, &str)]) -> Finished {
    let mut command = Command::new(binary());
    command
        .args(arguments)
        .env_clear()
        .envs(environment.iter().copied());
    run("seawall", &mut command, PATIENCE)
}

fn with_file(command: &str, file: &Path, more: &[&str]) -> Finished {
    seawall(
        &[&[command, "--config", file.to_str().unwrap()], more].concat(),
        &[],
    )
}

fn good(scene: &Scene) -> PathBuf {
    scene.write("seawall.toml", &configuration(scene, BROKER, &[]))
}

#[test]
fn a_port_that_is_taken() {
    let scene = Scene::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let _taken = TcpListener::bind(taken).unwrap();
    for key in ["listen.addresses", "admin.address"] {
        let value = if key == "admin.address" {
            format!("{:?}", taken.to_string())
        } else {
            format!("[\"{taken}\"]")
        };
        let file = scene.write("seawall.toml", &configuration(&scene, BROKER, &[(key, &value)]));
        with_file("run", &file, &[]).expect(71, &[&taken.to_string()]);
    }
}

#[test]
fn certificates_and_keys_that_are_no_good() {
    let scene = Scene::new();
    scene.write(
        "garbage.pem",
        "-----BEGIN CERTIFICATE-----\nnot base64 at all !!\n-----END CERTIFICATE-----\n",
    );
    scene.write("empty.pem", "");
    let table = [
        ("tls.certificate", "missing.pem", "missing.pem"),
        ("tls.certificate", "garbage.pem", "garbage.pem"),
        ("tls.certificate", "empty.pem", "empty.pem"),
        ("tls.certificate", "", "tls.certificate"),
        ("tls.private_key", "missing.key", "missing.key"),
        ("tls.private_key", "empty.pem", "empty.pem"),
        ("tls.private_key", "ecdsa.pem", "ecdsa.pem"),
        // A key that belongs to another certificate.
        ("tls.private_key", "rsa.key", "tls."),
    ];
    for (key, name, words) in table {
        let value = format!("{:?}", scene.text_path(name));
        let file = scene.write("seawall.toml", &configuration(&scene, BROKER, &[(key, &value)]));
        for command in ["check", "run"] {
            with_file(command, &file, &[]).expect(78, &[words]);
        }
    }
}

#[test]
fn a_key_that_may_not_be_read() {
    if rustix::process::geteuid().is_root() {
        // Root reads everything; a folder in place of the file is what root can't read.
        let scene = Scene::new();
        std::fs::create_dir(scene.path("folder")).unwrap();
        let value = format!("{:?}", scene.text_path("folder"));
        let file = scene.write(
            "seawall.toml",
            &configuration(&scene, BROKER, &[("tls.private_key", &value)]),
        );
        with_file("check", &file, &[]).expect(78, &["folder"]);
        return;
    }
    let scene = Scene::new();
    let key = scene.path("ecdsa.key");
    std::fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o000)).unwrap();
    with_file("check", &good(&scene), &[]).expect(78, &["ecdsa.key", "ermission"]);
}

#[test]
fn check_says_yes_or_lists_every_mistake() {
    let scene = Scene::new();
    with_file("check", &good(&scene), &[]).expect(0, &[]);
    with_file("check", &scene.path("nowhere.toml"), &[]).expect(78, &["nowhere.toml"]);

    let mistakes = [
        ("admission.rate", "\"fast\""),
        ("admission.brust", "5"),
        ("refusal.method", "\"slam\""),
        ("tls.certificate", "\"/nowhere/cert.pem\""),
        ("upstream.connect_timeout", "3"),
    ];
    let file = scene.write("seawall.toml", &configuration(&scene, BROKER, &mistakes));
    let words = [
        "admission.rate",
        "fast",
        "brust",
        "burst",
        "slam",
        "close",
        "/nowhere/cert.pem",
        "connect_timeout",
    ];
    for command in ["check", "run"] {
        with_file(command, &file, &[]).expect(78, &words);
    }
}

#[test]
fn flags_beat_environment_and_environment_beats_the_file() {
    let scene = Scene::new();
    let file = scene.write(
        "seawall.toml",
        &configuration(&scene, BROKER, &[("admission.rate", "11")]),
    );
    let file = file.to_str().unwrap();
    let print = ["check", "--print", "--config", file];
    let environment = [("SEAWALL_ADMISSION__RATE", "22")];
    let flag = [&print[..], &["--set", "admission.rate=33"]].concat();
    for (arguments, environment, rate) in [
        (&print[..], &[][..], "11"),
        (&print[..], &environment[..], "22"),
        (&flag[..], &environment[..], "33"),
    ] {
        let finished = seawall(arguments, environment);
        finished.expect(0, &[]);
        let printed: toml::Table = finished
            .stdout
            .parse()
            .expect("the printed configuration is TOML");
        let found = printed["admission"]["rate"].to_string();
        assert_eq!(found.trim_end_matches(".0"), rate);
    }
    // What is printed can be read again.
    let printed = seawall(&print, &[]).stdout;
    let again = scene.write("again.toml", &printed);
    with_file("check", &again, &[]).expect(0, &[]);
}

#[test]
fn command_lines_that_are_none() {
    for arguments in [&["fly"][..], &["run", "--no-such-flag"], &[], &["check", "--set"]] {
        let finished = seawall(arguments, &[]);
        assert_eq!(finished.code, Some(64), "{arguments:?}: {}", finished.stderr);
        assert!(!finished.stderr.is_empty());
    }
    for arguments in [&["--help"][..], &["--version"], &["run", "--help"]] {
        seawall(arguments, &[]).expect(0, &["seawall"]);
    }
}

#[tokio::test]
async fn a_service_manager_ends_it() {
    let scene = Scene::new();
    let broker = Stub::content().await;
    for signal in [Signal::TERM, Signal::INT] {
        let daemon = Daemon::start(&scene, broker.address(), &[]);
        daemon.signal(signal);
        assert_eq!(daemon.wait_for_end(PATIENCE).code(), Some(0), "idle, {signal:?}");
    }
    let daemon = Daemon::start(&scene, broker.address(), &[]);
    let _session = Device::join(&daemon, Connect::v311("in session")).await;
    daemon.signal(Signal::TERM);
    let status = daemon.wait_for_end(Duration::from_secs(45));
    assert_eq!(status.code(), Some(0), "with a session");
}

/// Whether the process has a handler for SIGHUP.
fn catches_hangups(process: &crate::rig::process::Process) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.id())).unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    caught.is_some_and(|mask| u64::from_str_radix(mask.trim(), 16).is_ok_and(|mask| mask & 1 != 0))
}

/// What takes long at the start is what a signal is most likely to meet: here lists that are read and turn out to be none.
#[test]
fn signals_are_caught_before_the_configuration_is_read() {
    let scene = Scene::new();
    let list = scene.path("crl0");
    std::fs::File::create(&list).unwrap().set_len(16 << 20).unwrap();
    let mut lists = Vec::new();
    for number in 1..=4 {
        let name = format!("crl{number}");
        std::os::unix::fs::symlink(&list, scene.path(&name)).unwrap();
        lists.push(scene.text_path(&name));
    }
    let lists = format!("{lists:?}");
    let authority = format!("{:?}", scene.text_path("ecdsa.pem"));
    let settings = [
        ("tls.client_auth", "\"required\""),
        ("tls.client_ca", authority.as_str()),
        ("tls.client_crl", lists.as_str()),
    ];
    let file = scene.write("seawall.toml", &configuration(&scene, BROKER, &settings));
    let mut command = Command::new(binary());
    command.args(["run", "--config"]).arg(file).env_clear();
    let mut process = crate::rig::process::Process::start("seawall", &mut command);
    let caught = process.wait_until("a handler of SIGHUP", |process| {
        catches_hangups(process).then_some(())
    });
    assert!(caught.is_ok(), "it came to an end before: {}", process.stderr());
    process.signal(Signal::HUP);
    let status = process.wait(PATIENCE);
    assert_eq!(status.code(), Some(78), "{status}: {}", process.stderr());
}

#[tokio::test]
async fn a_hangup_during_the_start_is_a_reload_after_it() {
    let scene = Scene::new();
    let broker = Stub::content().await;
    let file = scene.write("seawall.toml", &configuration(&scene, broker.address(), &[]));
    let mut command = Command::new("sh");
    command
        .args(["-c", "exec \"$0\" run --config \"$1\""])
        .arg(binary())
        .arg(&file);
    let mut process = crate::rig::process::Process::start("seawall", command.env_clear());
    let caught = process.wait_until("a handler of SIGHUP", |process| {
        catches_hangups(process).then_some(())
    });
    assert!(caught.is_ok());
    process.signal(Signal::HUP);
    let reloaded = process.wait_until("a reload", |process| {
        process
            .stderr()
            .contains("the configuration is reloaded")
            .then_some(())
    });
    assert!(reloaded.is_ok(), "{}", process.stderr());
    process.signal(Signal::TERM);
    assert_eq!(process.wait(PATIENCE).code(), Some(0));
}

#[tokio::test]
async fn a_limit_for_the_size_of_files_is_a_full_disk_and_not_the_end() {
    let scene = Scene::new();
    let broker = Stub::content().await;
    let path = scene.path("audit.jsonl");
    let value = format!("{path:?}");
    let settings = [("audit.path", value.as_str())];
    let file = scene.write(
        "seawall.toml",
        &configuration(&scene, broker.address(), &settings),
    );
    // In units of 512 bytes.
    let daemon = Daemon::launch(
        Command::new("sh")
            .args(["-c", "ulimit -f 32; exec \"$0\" run --config \"$1\""])
            .arg(binary())
            .arg(file),
    );
    let long = "L".repeat(2500);
    for _ in 0..10 {
        Device::join(&daemon, Connect::v311(&long)).await.close().await;
    }
    daemon.counts("seawall_audit_failing", &[], 1.0).await;
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 32 * 512);
    // It serves on, and writes on as soon as it can.
    let _device = Device::join(&daemon, Connect::v311("after")).await;
    std::fs::rename(&path, scene.path("full.jsonl")).unwrap();
    daemon.counts("seawall_audit_failing", &[], 0.0).await;
    daemon.counts("seawall_audit_dropped_total", &[], 0.0).await;
    eventually("what was held back is written", || {
        std::fs::read_to_string(&path).is_ok_and(|text| text.contains("\"after\""))
    })
    .await;
}

#[tokio::test]
async fn descriptors_0_to_2_that_came_closed_are_not_given_to_clients() {
    let scene = Scene::new();
    let broker = Stub::content().await;
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let value = format!("[\"{port}\"]");
    let settings = [("listen.addresses", value.as_str())];
    let file = scene.write(
        "seawall.toml",
        &configuration(&scene, broker.address(), &settings),
    );
    let mut process = crate::rig::process::Process::start(
        "seawall",
        Command::new("sh")
            .args(["-c", "exec \"$0\" run --config \"$1\" 0<&- 1>&- 2>&-"])
            .arg(binary())
            .arg(file),
    );
    eventually("it listens", || {
        if let Some(status) = process.ended() {
            panic!("seawall ended: {status}");
        }
        std::net::TcpStream::connect(port).is_ok()
    })
    .await;
    let mut device = Device::try_dial(port).await.unwrap();
    device.send(&Connect::v311("one").bytes()).await;
    device.expect_packet(&packet::accepted(4)).await;
    for descriptor in 0..3 {
        let target = std::fs::read_link(format!("/proc/{}/fd/{descriptor}", process.id()));
        assert_eq!(target.unwrap(), Path::new("/dev/null"), "descriptor {descriptor}");
    }
    process.signal(Signal::TERM);
    assert_eq!(process.wait(Duration::from_secs(45)).code(), Some(0));
}

#[tokio::test]
async fn no_secret_reaches_the_log_at_any_level() {
    const SECRETS: [&str; 3] = ["correct-horse", "the-payload", "last-words"];
    let scene = Scene::new();
    let broker = Stub::content().await;
    for format in ["text", "json"] {
        let format = format!("\"{format}\"");
        let settings = [("log.level", "\"trace\""), ("log.format", format.as_str())];
        let daemon = Daemon::start(&scene, broker.address(), &settings);
        for level in [3, 4, 5] {
            let connect = Connect {
                username: Some("user"),
                password: Some(SECRETS[0].as_bytes()),
                will: Some(("topic", SECRETS[2].as_bytes())),
                ..Connect::level(level, "logged")
            };
            let mut device = Device::join(&daemon, connect).await;
            device
                .send(&packet::publish(level, "topic", None, SECRETS[1].as_bytes()))
                .await;
            device.close().await;
            // The same with a flag that makes it malformed.
            let mut bytes = connect.bytes();
            bytes[9] |= 0x19;
            let mut device = Device::dial(&daemon).await;
            device.send(&bytes).await;
            device.rest(PATIENCE).await;
        }
        daemon.counts("seawall_closed_total", &[], 6.0).await;
        let log = daemon.stderr();
        assert!(!log.is_empty(), "no log at the level `trace`");
        for secret in SECRETS {
            assert!(!log.contains(secret), "{secret} in {log}");
            let bytes = format!("{:?}", secret.as_bytes());
            assert!(
                !log.contains(bytes.trim_matches(['[', ']'])),
                "the bytes of {secret} in {log}"
            );
        }
        if format.contains("json") {
            for line in log.lines() {
                assert!(
                    serde_json::from_str::<serde_json::Value>(line).is_ok(),
                    "no JSON: {line}"
                );
            }
        }
    }
}
