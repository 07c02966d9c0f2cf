//! `examples/resilient_client.rs` against a real Mosquitto that goes down in the middle.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;

use rustix::process::Signal;

use crate::rig::daemon::binary;
use crate::rig::process::{Process, run};
use crate::rig::{PATIENCE, Scene, eventually};

/// A Mosquitto that remembers its sessions over a restart, always on the same port.
struct Broker<'a> {
    scene: &'a Scene,
    port: u16,
    process: Option<Process>,
}

impl<'a> Broker<'a> {
    fn start(scene: &'a Scene) -> Self {
        let port = std::net::TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let mut broker = Self {
            scene,
            port,
            process: None,
        };
        broker.up();
        broker
    }

    fn up(&mut self) {
        let folder = self.scene.text_path("");
        let text = format!(
            "user root\nallow_anonymous true\npersistence true\npersistence_location {folder}\n\
             log_dest stderr\nmax_queued_messages 0\nlistener {} 127.0.0.1\n",
            self.port
        );
        let file = self.scene.write("mosquitto.conf", &text);
        let program = if PathBuf::from("/usr/sbin/mosquitto").exists() {
            "/usr/sbin/mosquitto"
        } else {
            "mosquitto"
        };
        let mut process = Process::start("mosquitto", Command::new(program).arg("-c").arg(file));
        let running = |process: &Process| process.stderr().contains(" running").then_some(());
        process.wait_until("running broker", running).unwrap();
        self.process = Some(process);
    }

    /// In order: its sessions are on the disk then.
    fn down(&mut self) {
        let mut process = self.process.take().unwrap();
        process.signal(Signal::TERM);
        process.wait(PATIENCE);
    }

    fn client(&self, program: &'static str, arguments: &[&str]) -> Process {
        Process::start(
            program,
            Command::new(program)
                .args(["-p", &self.port.to_string()])
                .args(arguments),
        )
    }

    fn publish(&self, topic: &str, payload: &str) {
        let mut command = Command::new("mosquitto_pub");
        command.args([
            "-p",
            &self.port.to_string(),
            "-q",
            "1",
            "-t",
            topic,
            "-m",
            payload,
        ]);
        assert_eq!(run("mosquitto_pub", &mut command, PATIENCE).code, Some(0));
    }

    fn device(&self) -> Process {
        let broker = format!("127.0.0.1:{}", self.port);
        let (audit, lock) = (self.scene.text_path("audit.jsonl"), self.scene.text_path("turns"));
        let mut command = Command::new(example());
        command.args([
            "--broker",
            &broker,
            "--id",
            "pump-7",
            "--subscribe",
            "down",
            "--publish",
            "up",
        ]);
        command.args(["--every-ms", "10", "--base-ms", "200", "--cap-ms", "1000"]);
        command.args(["--audit", &audit, "--lock", &lock]);
        Process::start("resilient_client", &mut command)
    }
}

/// Builds it where `cargo test --test it` did not.
fn example() -> PathBuf {
    let folder = binary().parent().unwrap().to_owned();
    let mut command = Command::new(env!("CARGO"));
    command
        .args(["build", "--example", "resilient_client"])
        .current_dir(env!("CARGO_MANIFEST_DIR"));
    if folder.ends_with("release") {
        command.arg("--release");
    }
    assert!(command.output().unwrap().status.success());
    folder.join("examples/resilient_client")
}

fn numbers(text: &str, prefix: &str) -> BTreeSet<u64> {
    text.lines()
        .filter_map(|line| line.strip_prefix(prefix)?.parse().ok())
        .collect()
}

fn connects(device: &Process) -> usize {
    device.stdout().matches("connected, session present").count()
}

#[tokio::test]
async fn a_broker_restart_loses_no_message_either_way() {
    let scene = Scene::new();
    let mut broker = Broker::start(&scene);
    let observer = broker.client("mosquitto_sub", &["-c", "-i", "observer", "-q", "1", "-t", "up"]);
    let device = broker.device();
    eventually("the device's first numbers", || {
        numbers(&observer.stdout(), "").len() >= 10
    })
    .await;
    for number in 1..=10 {
        broker.publish("down", &number.to_string());
    }
    eventually("the first ten", || {
        numbers(&device.stdout(), "received down ").len() == 10
    })
    .await;

    // Ten more while the device hears nothing: they are in the broker's hands when it goes down.
    device.signal(Signal::STOP);
    for number in 11..=20 {
        broker.publish("down", &number.to_string());
    }
    broker.down();
    broker.up();
    device.signal(Signal::CONT);
    eventually("what the broker had kept", || {
        numbers(&device.stdout(), "received down ").len() == 20
    })
    .await;

    // And once more while the device is talking.
    let before = numbers(&observer.stdout(), "").len();
    broker.down();
    eventually("the loss", || {
        device.stdout().matches("next attempt in").count() >= 2
    })
    .await;
    broker.up();
    eventually("the device again", || connects(&device) >= 3).await;
    eventually("numbers from after the outage", || {
        numbers(&observer.stdout(), "").len() >= before + 200
    })
    .await;

    let seen = numbers(&observer.stdout(), "");
    let last = *seen.last().unwrap();
    let missing: Vec<u64> = (1..=last).filter(|number| !seen.contains(number)).collect();
    assert_eq!(missing, [] as [u64; 0], "of {last}");
    let heard = numbers(&device.stdout(), "received down ");
    assert_eq!(heard, (1..=20).collect());

    let audit = std::fs::read_to_string(scene.path("audit.jsonl")).unwrap();
    let outcomes: Vec<String> = audit
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap())
        .map(|line| {
            assert_eq!(
                (line["client_id"].as_str(), line["clean"].as_bool()),
                (Some("pump-7"), Some(false))
            );
            line["outcome"].as_str().unwrap().to_owned()
        })
        .collect();
    assert_eq!(outcomes[..2], ["backoff", "connected"]);
    assert_eq!(
        outcomes.iter().filter(|outcome| *outcome == "connected").count(),
        3
    );
    assert!(
        outcomes.iter().filter(|outcome| *outcome == "failed").count() >= 2,
        "{outcomes:?}"
    );
}

#[tokio::test]
async fn a_broker_that_forgot_the_session_is_told_again() {
    let scene = Scene::new();
    let mut broker = Broker::start(&scene);
    let device = broker.device();
    eventually("the device", || connects(&device) == 1).await;
    broker.down();
    std::fs::remove_file(scene.path("mosquitto.db")).unwrap();
    broker.up();
    let observer = broker.client("mosquitto_sub", &["-q", "1", "-t", "up"]);
    eventually("the device again", || connects(&device) == 2).await;
    assert!(device.stdout().contains("session present: false"));
    eventually("its numbers", || numbers(&observer.stdout(), "").len() >= 10).await;
    broker.publish("down", "1");
    eventually("a subscription", || {
        !numbers(&device.stdout(), "received down ").is_empty()
    })
    .await;
}

#[tokio::test]
async fn the_will_is_published_on_a_kill_and_not_on_a_stop() {
    let scene = Scene::new();
    let broker = Broker::start(&scene);
    let observer = broker.client("mosquitto_sub", &["-q", "1", "-t", "status/pump-7"]);
    let said = async |expected: &[&str]| {
        eventually(expected[expected.len() - 1], || {
            observer.stdout().lines().eq(expected.iter().copied())
        })
        .await;
    };
    let device = broker.device();
    said(&["online"]).await;
    device.signal(Signal::KILL);
    said(&["online", "offline"]).await;

    let mut device = broker.device();
    said(&["online", "offline", "online"]).await;
    device.signal(Signal::TERM);
    assert!(device.wait(PATIENCE).success());
    said(&["online", "offline", "online", "stopped"]).await;
    // What a newcomer is told: had the Will come after the stop, it would be this.
    let newcomer = broker.client("mosquitto_sub", &["-t", "status/pump-7"]);
    eventually("the retained status", || newcomer.stdout() == "stopped\n").await;
    assert_eq!(observer.stdout(), "online\noffline\nonline\nstopped\n");
}
