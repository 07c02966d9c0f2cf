//! Real clients through Seawall to a real broker: QoS 0 to 2, retained messages, Wills, persistent sessions, a bridge.

use crate::rig::process::{Process, run};
use crate::rig::{Connect, Daemon, Device, Mosquitto, Scene, packet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// A whole script of a peer; each of its waits is bounded by 15 s.
const SCRIPT: Duration = Duration::from_secs(90);

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/peers")
        .join(name)
}

fn tools(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/.tools")
        .join(name)
}

fn python() -> Command {
    let named = std::env::var_os("SEAWALL_PYTHON").map(PathBuf::from);
    Command::new(named.unwrap_or_else(|| tools("python/bin/python3")))
}

fn node() -> Command {
    let mut command = Command::new("node");
    if std::env::var_os("NODE_PATH").is_none() {
        command.env("NODE_PATH", tools("node/node_modules"));
    }
    command
}

fn play(
    name: &'static str,
    mut interpreter: Command,
    script: PathBuf,
    scene: &Scene,
    daemon: &Daemon,
    version: &str,
) {
    interpreter
        .arg(script)
        .args(["127.0.0.1", &daemon.port()])
        .arg(scene.path("ca.pem"))
        .arg(version);
    let finished = run(name, &mut interpreter, SCRIPT);
    assert_eq!(
        finished.code,
        Some(0),
        "{name} {version}: {}{}",
        finished.stdout,
        finished.stderr
    );
    assert_eq!(finished.stdout.matches(": ok").count(), 4, "{}", finished.stdout);
}

#[test]
fn paho() {
    let scene = Scene::new();
    let broker = Mosquitto::start(&scene);
    let daemon = Daemon::start(&scene, broker.address(), &[]);
    for version in ["3.1", "3.1.1", "5"] {
        play(
            "paho",
            python(),
            script("paho_session.py"),
            &scene,
            &daemon,
            version,
        );
    }
}

#[test]
fn mqtt_js() {
    let scene = Scene::new();
    let broker = Mosquitto::start(&scene);
    let daemon = Daemon::start(&scene, broker.address(), &[]);
    for version in ["3.1", "3.1.1", "5"] {
        play(
            "mqtt.js",
            node(),
            script("mqttjs_session.js"),
            &scene,
            &daemon,
            version,
        );
    }
}

/// `mosquitto_pub` or `mosquitto_sub` through Seawall, in one version.
struct MosquittoClient<'a> {
    scene: &'a Scene,
    daemon: &'a Daemon,
    version: &'a str,
}

impl MosquittoClient<'_> {
    fn command(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        command
            .args([
                "-h",
                "127.0.0.1",
                "-p",
                &self.daemon.port(),
                "-V",
                self.version,
                "--cafile",
            ])
            .arg(self.scene.path("ca.pem"))
            .args(arguments);
        command
    }

    fn publish(&self, arguments: &[&str]) {
        let finished = run(
            "mosquitto_pub",
            &mut self.command("mosquitto_pub", arguments),
            SCRIPT,
        );
        assert_eq!(finished.code, Some(0), "{arguments:?}: {}", finished.stderr);
    }

    /// Subscribes with a session that is kept, so that nothing published from now on is missed, and leaves.
    fn subscribe(&self, id: &str, topic: &str, qos: &str) {
        self.receive(&["-i", id, "-c", "-t", topic, "-q", qos, "-E"]);
    }

    fn receive(&self, arguments: &[&str]) -> String {
        let arguments = [&["-W", "15", "-x", "600"], arguments].concat();
        // Session expiry is a word of 5.0 alone.
        let arguments = if self.version == "mqttv5" {
            &arguments[..]
        } else {
            &[&arguments[..2], &arguments[4..]].concat()
        };
        let finished = run(
            "mosquitto_sub",
            &mut self.command("mosquitto_sub", arguments),
            SCRIPT,
        );
        assert_eq!(finished.code, Some(0), "{arguments:?}: {}", finished.stderr);
        finished.stdout
    }
}

#[test]
fn mosquitto_clients() {
    let scene = Scene::new();
    let broker = Mosquitto::start(&scene);
    let daemon = Daemon::start(&scene, broker.address(), &[]);
    for version in ["mqttv31", "mqttv311", "mqttv5"] {
        let client = MosquittoClient {
            scene: &scene,
            daemon: &daemon,
            version,
        };
        for qos in ["0", "1", "2"] {
            // The sleeper's session keeps QoS 1 and 2; for 0 somebody has to be awake.
            let (id, topic) = (format!("sub-{version}-{qos}"), format!("{version}/qos/{qos}"));
            if qos == "0" {
                let arguments = ["-W", "15", "-t", &topic, "-q", "0", "-C", "1"];
                let mut awake =
                    Process::start("mosquitto_sub", &mut client.command("mosquitto_sub", &arguments));
                while awake.ended().is_none() {
                    client.publish(&["-t", &topic, "-m", "payload", "-q", "0"]);
                }
                assert!(awake.wait(SCRIPT).success());
                continue;
            }
            client.subscribe(&id, &topic, qos);
            for number in 0..5 {
                client.publish(&["-t", &topic, "-m", &format!("message {number}"), "-q", qos]);
            }
            let received =
                client.receive(&["-i", &id, "-c", "-t", &topic, "-q", qos, "-C", "5", "-F", "%q %p"]);
            let expected: Vec<String> = (0..5).map(|number| format!("{qos} message {number}")).collect();
            assert_eq!(received.lines().collect::<Vec<_>>(), expected, "{version}");
        }

        let topic = format!("{version}/retained");
        client.publish(&["-t", &topic, "-m", "kept", "-q", "1", "-r"]);
        assert_eq!(
            client.receive(&["-t", &topic, "-C", "1", "-F", "%r %p"]),
            "1 kept\n"
        );
    }
}

#[tokio::test]
async fn a_mosquitto_client_that_is_killed_leaves_a_will() {
    let scene = Scene::new();
    let broker = Mosquitto::start(&scene);
    let daemon = Daemon::start(&scene, broker.address(), &[]);
    let mut watcher = Device::join(&daemon, Connect::v311("watcher")).await;
    watcher.send(&packet::subscribe(4, "wills/#", 1)).await;
    watcher.packet().await;
    for (version, relaying) in [("mqttv31", 2.0), ("mqttv311", 2.0), ("mqttv5", 2.0)] {
        let client = MosquittoClient {
            scene: &scene,
            daemon: &daemon,
            version,
        };
        let topic = format!("wills/{version}");
        let arguments = [
            "-t",
            "idle",
            "--will-topic",
            &topic,
            "--will-payload",
            "gone",
            "--will-qos",
            "1",
        ];
        let mortal = Process::start("mosquitto_sub", &mut client.command("mosquitto_sub", &arguments));
        daemon
            .counts("seawall_connections_open", &[("phase", "relaying")], relaying)
            .await;
        // Killed.
        drop(mortal);
        let (from, identifier, payload) = packet::published(4, &watcher.packet().await);
        assert_eq!((from, payload), (topic, b"gone".to_vec()));
        watcher.send(&packet::puback(identifier.unwrap())).await;
    }
}

/// It takes any refusing CONNACK as final: for such fleets there is `refusal.method = "close"`.
#[tokio::test]
async fn a_mosquitto_client_comes_again_after_a_silent_close() {
    let scene = Scene::new();
    let broker = Mosquitto::start(&scene);
    let one_token = [("admission.rate", "0.4"), ("admission.burst", "1")];
    let closing = Daemon::start(
        &scene,
        broker.address(),
        &[&one_token[..], &[("refusal.method", "\"close\"")]].concat(),
    );
    let _first = Device::join(&closing, Connect::v311("first")).await;
    let client = MosquittoClient {
        scene: &scene,
        daemon: &closing,
        version: "mqttv311",
    };
    let _sleeper = Process::start(
        "mosquitto_sub",
        &mut client.command("mosquitto_sub", &["-t", "idle"]),
    );
    let metrics = closing
        .counts("seawall_connections_open", &[("phase", "relaying")], 2.0)
        .await;
    assert!(
        metrics.sum("seawall_refused_total", &[("reason", "rate")]) >= 1.0,
        "it was never refused"
    );
}

#[test]
fn a_broker_behind_a_unix_socket() {
    let scene = Scene::new();
    let socket = scene.text_path("broker.sock");
    let broker = Mosquitto::with(&scene, &format!("allow_anonymous true\nlistener 0 {socket}\n"));
    let server = format!("[\"unix:{socket}\"]");
    let daemon = Daemon::start(&scene, broker.address(), &[("upstream.servers", &server)]);
    let client = MosquittoClient {
        scene: &scene,
        daemon: &daemon,
        version: "mqttv5",
    };
    client.publish(&["-t", "retained", "-m", "kept", "-q", "1", "-r"]);
    assert_eq!(client.receive(&["-t", "retained", "-C", "1"]), "kept\n");
}

#[tokio::test]
async fn a_mosquitto_bridge() {
    let scene = Scene::new();
    let broker = Mosquitto::start(&scene);
    let daemon = Daemon::start(&scene, broker.address(), &[]);
    let mut far = Device::join(&daemon, Connect::v311("far")).await;
    far.send(&packet::subscribe(4, "up/#", 0)).await;
    far.packet().await;
    for version in ["mqttv31", "mqttv311", "mqttv50"] {
        let near = Mosquitto::with(
            &scene,
            &format!(
                "allow_anonymous true\nconnection near-{version}\naddress 127.0.0.1:{}\nbridge_cafile {}\n\
                 bridge_protocol_version {version}\nrestart_timeout 1\ncleansession false\n\
                 topic up/# out 1\ntopic down/# in 1\n",
                daemon.port(),
                scene.text_path("ca.pem")
            ),
        );
        let topic = format!("up/{version}");
        // The bridge keeps it until it is connected.
        publish_at(&near, &topic);
        let (from, _, payload) = packet::published(4, &far.packet().await);
        assert_eq!((from, payload), (topic, b"over the bridge".to_vec()));

        let topic = format!("down/{version}");
        let port = near.address().port().to_string();
        let arguments = [
            "-h",
            "127.0.0.1",
            "-p",
            &port,
            "-t",
            &topic,
            "-C",
            "1",
            "-W",
            "15",
        ];
        let mut awake = Process::start("mosquitto_sub", Command::new("mosquitto_sub").args(arguments));
        while awake.ended().is_none() {
            far.send(&packet::publish(4, &topic, None, b"back")).await;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert!(awake.wait(SCRIPT).success(), "nothing came down to {version}");
    }
}

fn publish_at(broker: &Mosquitto, topic: &str) {
    let port = broker.address().port().to_string();
    let arguments = [
        "-h",
        "127.0.0.1",
        "-p",
        &port,
        "-t",
        topic,
        "-m",
        "over the bridge",
        "-q",
        "1",
    ];
    let finished = run(
        "mosquitto_pub",
        Command::new("mosquitto_pub").args(arguments),
        SCRIPT,
    );
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
}
