//! `seawall demo` and `seawall certs` as a user types them.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::rig::daemon::binary;
use crate::rig::process::{Finished, run};
use crate::rig::{PATIENCE, Scene};

/// Fill, 3 s of calm, 4 s of outage, the return; and a loaded machine.
const WHOLE_DEMO: Duration = Duration::from_secs(90);

fn seawall(arguments: &[&str], folder: &Path, patience: Duration) -> Finished {
    let mut command = Command::new(binary());
    command.args(arguments).arg("--out").arg(folder).env_clear();
    run("seawall", &mut command, patience)
}

/// A line of the live view a second, every device back, and the bystanders undisturbed.
fn demo(policy: &str) {
    let scene = Scene::new();
    let folder = scene.path("certificates");
    let audit = scene.text_path("audit.jsonl");
    let finished = seawall(
        &["demo", "--devices", "100", "--policy", policy, "--audit", &audit],
        &folder,
        WHOLE_DEMO,
    );
    let ca = folder.join("ca.pem");
    finished.expect(
        0,
        &[
            "100 of 100 devices",
            " 0 of them of clients that had left",
            ca.to_str().unwrap(),
        ],
    );
    let lines = |phase: &str| {
        finished
            .stdout
            .lines()
            .filter(|line| line.contains(phase))
            .count()
    };
    assert!(
        lines("  calm ") >= 2 && lines("  no tower ") >= 3,
        "{}",
        finished.stdout
    );
    let nothing_lost = |line: &str| line.trim().starts_with("0 of ") && line.ends_with("messages lost");
    assert!(finished.stdout.lines().any(nothing_lost), "{}", finished.stdout);
    let report = run(
        "seawall report",
        Command::new(binary()).args(["report", &audit]).env_clear(),
        PATIENCE,
    );
    report.expect(0, &["the chain holds"]);
}

#[test]
fn a_fleet_on_a_fixed_timer_comes_back() {
    demo("fixed");
}

#[test]
fn a_fleet_with_full_jitter_comes_back() {
    demo("full");
}

#[test]
fn a_demo_that_cannot_be_says_why() {
    let scene = Scene::new();
    let folder = scene.path("certificates");
    seawall(&["demo", "--rate", "0"], &folder, PATIENCE).expect(78, &["admission.rate"]);
    seawall(&["demo", "--policy", "best"], &folder, PATIENCE).expect(64, &["unknown policy", "decorrelated"]);
    seawall(&["demo", "--devices", "0"], &folder, PATIENCE).expect(64, &["--devices"]);
}

#[test]
fn certificates_are_written_where_they_were_asked_for() {
    let scene = Scene::new();
    let folder = scene.path("new/certificates");
    seawall(&["certs", "--name", "fleet.example"], &folder, PATIENCE).expect(0, &["server.key"]);
    for file in ["ca.pem", "server.pem", "server.key", "client.pem", "client.key"] {
        let text = std::fs::read_to_string(folder.join(file)).unwrap();
        assert!(text.starts_with("-----BEGIN "), "{file}: {text}");
    }
    let ca = std::fs::read(folder.join("ca.pem")).unwrap();
    seawall(&["certs", "--keep"], &folder, PATIENCE).expect(0, &["server.key"]);
    assert_eq!(
        std::fs::read(folder.join("ca.pem")).unwrap(),
        ca,
        "a client that trusts it still does"
    );
    std::fs::write(folder.join("client.key"), "").unwrap();
    seawall(&["certs", "--keep"], &folder, PATIENCE)
        .expect(1, &["client.key holds no private key", "leave out --keep"]);
    assert_eq!(
        std::fs::read(folder.join("ca.pem")).unwrap(),
        ca,
        "and after that as well"
    );
    seawall(&["certs"], &folder, PATIENCE).expect(0, &["server.key"]);
    assert_ne!(std::fs::read(folder.join("ca.pem")).unwrap(), ca);
    seawall(&["certs", "--name", "not a name"], &folder, PATIENCE).expect(64, &["not a name"]);
}
