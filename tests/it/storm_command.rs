//! `seawall storm` as a user types it, against Seawall and against a bare Mosquitto.

use std::net::{SocketAddr, TcpListener};
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use crate::rig::daemon::binary;
use crate::rig::mosquitto::{PASSWORD, USERNAME};
use crate::rig::process::{Finished, Process, run};
use crate::rig::{Daemon, Mosquitto, PATIENCE, Scene};

/// Fill, outage, return; and a loaded machine.
const WHOLE_STORM: Duration = Duration::from_secs(90);

/// The storm that all scenarios begin with: short pauses, so that they are short as well.
fn storm(scene: &Scene, target: SocketAddr, arguments: &[&str]) -> Command {
    let mut command = Command::new(binary());
    command
        .env_clear()
        .args(["storm", "--target", &format!("localhost:{}", target.port())])
        .args([
            "--json",
            &scene.text_path("storm.json"),
            "--html",
            &scene.text_path("storm.html"),
        ])
        .args([
            "--outage", "500ms", "--retry", "300ms", "--base", "100ms", "--cap", "2s",
        ])
        .args([
            "--calm",
            "500ms",
            "--publish-every",
            "50ms",
            "--pairs",
            "5",
            "--limit",
            "60s",
        ])
        .args(arguments);
    command
}

fn finished(scene: &Scene, target: SocketAddr, arguments: &[&str]) -> Finished {
    run("seawall", &mut storm(scene, target, arguments), WHOLE_STORM)
}

fn trusting(scene: &Scene) -> [String; 2] {
    ["--ca".to_owned(), scene.text_path("ca.pem")]
}

fn json(scene: &Scene) -> Value {
    let text = std::fs::read_to_string(scene.path("storm.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn number(value: &Value, path: &str) -> f64 {
    let found = value.pointer(path).and_then(Value::as_f64);
    found.unwrap_or_else(|| panic!("no number {path} in {value:#}"))
}

/// Every arrival has its outcome: nothing is under way any more.
#[track_caller]
fn adds_up(counts: &Value) {
    let sum = |field: &str| -> u64 {
        let map = counts[field].as_object().unwrap();
        map.values().map(|times| times.as_u64().unwrap()).sum()
    };
    let admitted = counts["admitted"].as_u64().unwrap();
    assert_eq!(
        counts["arrivals"].as_u64(),
        Some(admitted + sum("refused") + sum("lost")),
        "{counts}"
    );
}

/// A Mosquitto that ends TLS by itself.
fn broker_with_tls(scene: &Scene) -> (Mosquitto, SocketAddr) {
    let port = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let broker = Mosquitto::with(
        scene,
        &format!(
            "allow_anonymous true\nlistener {port} 127.0.0.1\ncertfile {}\nkeyfile {}\n",
            scene.text_path("ecdsa.pem"),
            scene.text_path("ecdsa.key"),
        ),
    );
    (broker, SocketAddr::new([127, 0, 0, 1].into(), port))
}

#[test]
fn a_part_of_the_fleet_loses_its_tower_in_front_of_a_bare_broker() {
    let scene = Scene::new();
    let (_broker, target) = broker_with_tls(&scene);
    let [flag, ca] = trusting(&scene);
    let arguments = [
        &flag,
        &ca,
        "--devices",
        "100",
        "--share",
        "40",
        "--mix",
        "fixed:50,full:50",
        "--persistent",
        "30",
    ];
    let finished = finished(&scene, target, &arguments.map(|argument: &str| argument));
    finished.expect(
        0,
        &[
            "back again           40 of 40 devices",
            "messages lost",
            "the generator",
        ],
    );
    let json = json(&scene);
    assert_eq!(
        (number(&json, "/hit"), number(&json, "/back/devices")),
        (40.0, 40.0)
    );
    assert_eq!(json["returns"].as_array().unwrap().len(), 40);
    assert_eq!(number(&json, "/before/admitted"), 100.0);
    assert_eq!(
        number(&json, "/bystanders/messages/sent"),
        number(&json, "/bystanders/messages/received")
    );
    assert!(number(&json, "/generator/effort/cpu_s") > 0.0);
    adds_up(&json["before"]);
    adds_up(&json["storm"]);
    let page = std::fs::read_to_string(scene.path("storm.html")).unwrap();
    assert!(page.contains("<svg") && !page.contains("<script"), "{page}");
}

/// What the devices count is what Seawall counts.
#[tokio::test(flavor = "multi_thread")]
async fn devices_and_proxy_count_the_same() {
    let scene = Scene::new();
    let broker = Mosquitto::start(&scene);
    let settings = [
        ("admission.rate", "40"),
        ("admission.burst", "10"),
        ("admission.max_wait", "\"0s\""),
    ];
    let daemon = Daemon::start(&scene, broker.address(), &settings);
    let [flag, ca] = trusting(&scene);
    // Patient, so that nobody leaves while an answer is on its way.
    let arguments = [
        &flag,
        &ca,
        "--devices",
        "60",
        "--pattern",
        "cold",
        "--spread",
        "0s",
        "--patience",
        "30s",
        "--pairs",
        "0",
        "--rate",
        "40",
    ];
    let mut command = storm(
        &scene,
        daemon.address(),
        &arguments.map(|argument: &str| argument),
    );
    let finished = tokio::task::spawn_blocking(move || run("seawall", &mut command, WHOLE_STORM))
        .await
        .unwrap();
    finished.expect(0, &["60 of 60 devices", "times the 1.5 s", "0x03", "0x89"]);
    let storm = json(&scene)["storm"].clone();
    adds_up(&storm);
    let refused = number(&storm, "/refused/3") + number(&storm, "/refused/137");
    let metrics = daemon
        .counts(
            "seawall_connects_total",
            &[("decision", "admitted")],
            number(&storm, "/admitted"),
        )
        .await;
    assert_eq!(
        metrics.sum("seawall_refused_total", &[("reason", "rate")]),
        refused
    );
    assert_eq!(
        metrics.sum("seawall_connections_total", &[]),
        number(&storm, "/arrivals")
    );
    let handshakes = |kind: &str| {
        let labels = [("kind", kind), ("version", "1.3")];
        metrics.sum("seawall_handshakes_total", &labels)
    };
    assert_eq!(handshakes("full"), number(&storm, "/handshakes/full"));
    assert_eq!(handshakes("resumed"), number(&storm, "/handshakes/resumed"));
    assert_eq!(number(&storm, "/handshakes/wasted"), refused);
    assert!(
        handshakes("resumed") > 0.0,
        "a refused device comes back with its ticket"
    );
}

#[test]
fn a_fleet_that_one_process_has_no_descriptors_for_takes_several() {
    let scene = Scene::new();
    let broker = Mosquitto::start(&scene);
    let mut command = storm(
        &scene,
        broker.address(),
        &[
            "--tls",
            "none",
            "--devices",
            "100",
            "--pattern",
            "rolling",
            "--parts",
            "3",
            "--every",
            "200ms",
        ],
    );
    limit_descriptors(&mut command, 128 + 60);
    let finished = run("seawall", &mut command, WHOLE_STORM);
    finished.expect(0, &["in 2 processes", "100 of 100 devices"]);
    let json = json(&scene);
    assert_eq!(number(&json, "/generator/processes"), 2.0);
    assert_eq!(json["returns"].as_array().unwrap().len(), 100);
    adds_up(&json["storm"]);
}

/// By `prlimit` of util-linux: a limit set in this process would be everybody's.
fn limit_descriptors(command: &mut Command, most: u64) {
    let mut limited = Command::new("prlimit");
    limited
        .arg(format!("--nofile={most}:{most}"))
        .arg(command.get_program())
        .args(command.get_args());
    *command = limited;
}

/// Certificates as an operator makes them for a trial, in the scene's folder `trial`.
fn trial_certificates(scene: &Scene) -> impl Fn(&str) -> String {
    let folder = scene.text_path("trial");
    run(
        "seawall",
        Command::new(binary()).args(["certs", "--out", &folder]),
        PATIENCE,
    )
    .expect(0, &["client.key"]);
    move |name| format!("{folder}/{name}")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_with_a_certificate_storms_a_daemon_that_asks_for_one() {
    let scene = Scene::new();
    let broker = Mosquitto::start(&scene);
    let file = trial_certificates(&scene);
    let quoted = |name: &str| format!("{:?}", file(name));
    let settings = [
        ("tls.certificate", quoted("server.pem")),
        ("tls.private_key", quoted("server.key")),
        ("tls.client_auth", "\"required\"".to_owned()),
        ("tls.client_ca", quoted("ca.pem")),
        ("admission.rate", "40".to_owned()),
        ("admission.burst", "10".to_owned()),
        ("admission.max_wait", "\"0s\"".to_owned()),
    ];
    let settings: Vec<(&str, &str)> = settings
        .iter()
        .map(|(key, value)| (*key, value.as_str()))
        .collect();
    let daemon = Daemon::start(&scene, broker.address(), &settings);
    let (ca, certificate, key) = (file("ca.pem"), file("client.pem"), file("client.key"));
    let with = ["--ca", &ca, "--cert", &certificate, "--key", &key];
    let cold = [
        "--devices",
        "40",
        "--pattern",
        "cold",
        "--spread",
        "0s",
        "--patience",
        "30s",
    ];
    let storming = |arguments: &[&str]| {
        let mut command = storm(&scene, daemon.address(), arguments);
        tokio::task::spawn_blocking(move || run("seawall", &mut command, WHOLE_STORM))
    };
    let came = storming(&[&with[..], &cold, &["--pairs", "2"]].concat())
        .await
        .unwrap();
    came.expect(0, &["40 of 40 devices"]);
    let report = json(&scene);
    adds_up(&report["storm"]);
    let bystanders = |field: &str| number(&report, &format!("/bystanders/messages/{field}"));
    assert_eq!(bystanders("sent"), bystanders("received"));
    // Refused devices come back with their tickets, and are known by them.
    assert!(number(&report, "/storm/handshakes/resumed") > 0.0, "{report:#}");
    let failures = "seawall_handshake_failures_total";
    let metrics = daemon.metrics().await;
    assert_eq!(metrics.sum(failures, &[]), 0.0, "{metrics}");

    let nobody = [
        "--devices",
        "5",
        "--pairs",
        "0",
        "--pattern",
        "restart",
        "--fill-limit",
        "1s",
    ];
    let refused = storming(&[&with[..2], &nobody].concat()).await.unwrap();
    refused.expect(1, &["only 0 of 5 devices"]);
    let missing = [("cause", "client-certificate-missing")];
    let metrics = daemon
        .metrics_until("a device without a certificate", |metrics| {
            metrics.sum(failures, &missing) >= 5.0
        })
        .await;
    assert_eq!(
        metrics.sum(failures, &[]),
        metrics.sum(failures, &missing),
        "{metrics}"
    );
}

#[test]
fn a_broker_that_a_command_restarts_gets_its_fleet_back() {
    let scene = Scene::new();
    let (broker, restart) = Mosquitto::supervised(&scene);
    let arguments = ["--tls", "none", "--devices", "40", "--pattern", "restart"];
    let by = |command: &str| {
        let command = ["--restart-command", command, "--pairs", "2"];
        finished(&scene, broker.address(), &[&arguments[..], &command].concat())
    };
    by(&restart).expect(0, &["40 of 40 devices", &restart]);
    assert_eq!(
        broker.stderr().matches(" running").count(),
        2,
        "{}",
        broker.stderr()
    );
    let report = json(&scene);
    assert_eq!(
        (number(&report, "/hit"), number(&report, "/back/devices")),
        (40.0, 40.0)
    );
    assert_eq!(report["returns"].as_array().unwrap().len(), 40);
    assert_eq!(number(&report, "/before/dropped"), 0.0);
    assert_eq!(number(&report, "/storm/dropped"), 40.0);
    assert!(
        report.get("command_failed").is_none_or(Value::is_null),
        "{report:#}"
    );
    adds_up(&report["storm"]);

    // Nothing is restarted, and nobody has to come back.
    let failed = by("exit 3");
    failed.expect(0, &["exit status: 3"]);
    let report = json(&scene);
    assert_eq!(number(&report, "/hit"), 0.0);
    assert!(
        report["command_failed"].as_str().unwrap().contains("exit 3"),
        "{report:#}"
    );
}

#[test]
fn a_fleet_that_may_not_log_in_is_no_storm() {
    let scene = Scene::new();
    let broker = Mosquitto::slow(&scene, 100);
    let right = scene.write("right", &format!("{PASSWORD}\n"));
    let wrong = scene.write("wrong", "guess");
    let attempt = |password: &str| {
        let arguments = [
            "--tls",
            "none",
            "--devices",
            "20",
            "--username",
            USERNAME,
            "--password-file",
            password,
        ];
        let rest = ["--fill-limit", "10s", "--pairs", "0", "--pattern", "restart"];
        finished(&scene, broker.address(), &[&arguments[..], &rest].concat())
    };
    attempt(right.to_str().unwrap()).expect(0, &["20 of 20 devices"]);
    let refused = attempt(wrong.to_str().unwrap());
    refused.expect(1, &["only 0 of 20 devices", "0x05", "0x87"]);
    assert!(!refused.stderr.contains("guess") && !refused.stdout.contains("guess"));
}

#[test]
fn an_interrupt_ends_with_the_report_so_far() {
    let scene = Scene::new();
    let broker = Mosquitto::start(&scene);
    let arguments = ["--tls", "none", "--devices", "30", "--outage", "60s"];
    let mut process = Process::start("seawall", &mut storm(&scene, broker.address(), &arguments));
    let lost = process.wait_until("an outage", |process| {
        process.stdout().contains("no tower").then_some(())
    });
    assert!(lost.is_ok(), "{}", process.stdout());
    process.signal(Signal::INT);
    assert_eq!(process.wait(PATIENCE).code(), Some(1));
    let json = json(&scene);
    assert_eq!(json["interrupted"], true);
    assert_eq!(
        (number(&json, "/hit"), number(&json, "/back/devices")),
        (30.0, 0.0)
    );
}

#[test]
fn a_storm_that_cannot_be_says_why() {
    let scene = Scene::new();
    let nobody = SocketAddr::from(([127, 0, 0, 1], 1));
    let missing = scene.text_path("missing.pem");
    for (arguments, code, words) in [
        (
            &["--target", "192.0.2.1:8883"][..],
            64,
            &["not this machine", "--i-own-this"][..],
        ),
        (&["--target", "localhost"], 64, &["HOST:PORT"]),
        (&[], 64, &["--ca FILE", "--insecure"]),
        (&["--ca", &missing], 64, &["missing.pem"]),
        (
            &["--tls", "none", "--mix", "fixed:60,full"],
            64,
            &["full has no share"],
        ),
        (&["--tls", "none", "--retry", "5"], 64, &["number with a unit"]),
        (&["--tls", "none", "--retry", "0s"], 64, &["above zero"]),
        (&["--tls", "none", "--share", "101"], 64, &["--share"]),
        (&["--tls", "none", "--pattern", "flood"], 64, &["tower", "cold"]),
        (&["--tls", "none", "--source", "::1"], 64, &["can't reach"]),
        (
            &["--tls", "none", "--json", "/nowhere/storm.json"],
            71,
            &["/nowhere/storm.json"],
        ),
        (
            &["--tls", "none", "--pairs", "0", "--fill-limit", "1s"],
            1,
            &["0 of 1000 devices", "unreachable"],
        ),
    ] {
        let given = finished_with_own_target(&scene, nobody, arguments);
        given.expect(code, words);
    }
}

/// A `--target` among the arguments takes the place of the one that all scenarios begin with.
fn finished_with_own_target(scene: &Scene, target: SocketAddr, arguments: &[&str]) -> Finished {
    let whole = storm(scene, target, arguments);
    let names_target = arguments.first() == Some(&"--target");
    let mut command = Command::new(whole.get_program());
    let kept = whole
        .get_args()
        .enumerate()
        .filter(|(place, _)| !(names_target && (1..3).contains(place)));
    command.env_clear().args(kept.map(|(_, argument)| argument));
    run("seawall", &mut command, WHOLE_STORM)
}
