//! What sets off each alert, recorded from real daemons in real trouble, every five seconds for three minutes: with
//! `tests/run --long` the rules are tried on what has just happened. `SEAWALL_RECORD=1 cargo test --test it alerts::`
//! writes the recordings to `deploy/prometheus/tests`, where `promtool test rules` finds them on every run.

mod recording;

use self::recording::{Expected, Recording};
use crate::rig::certificates::authority_with_list;
use crate::rig::daemon::{binary, configuration};
use crate::rig::stub::nobody;
use crate::rig::{Connect, Daemon, Device, Redis, Scene, Stub, long};
use rcgen::{CertificateParams, KeyPair};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use time::OffsetDateTime;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;

/// When trouble begins: before it no alert may be there.
const BEGIN: u64 = 30;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_alert_is_set_off_by_what_it_names() {
    let record = std::env::var_os("SEAWALL_RECORD").is_some();
    if !record && !long() {
        return;
    }
    let scene = Scene::alone();
    let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/prometheus");
    let folder = if record {
        deploy.clone()
    } else {
        std::fs::create_dir_all(scene.path("prometheus/tests")).unwrap();
        std::fs::copy(deploy.join("rules.yml"), scene.path("prometheus/rules.yml")).unwrap();
        scene.path("prometheus")
    };
    tokio::join!(
        storm(&scene, &folder),
        impatient(&scene, &folder),
        broker_dies(&scene, &folder),
        authentication(&scene, &folder),
        slow_broker(&scene, &folder),
        certificates(&scene, &folder),
        limits(&scene, &folder),
        no_port(&scene, &folder),
        audit(&scene, &folder),
        replicas(&scene, &folder),
        shared_budget(&scene, &folder),
    );
    let tests = std::fs::read_dir(folder.join("tests")).unwrap();
    let tried = Command::new("promtool")
        .args(["test", "rules"])
        .args(tests.map(|entry| entry.unwrap().path()))
        .output()
        .expect("promtool of the package `prometheus`");
    let words = String::from_utf8_lossy(&tried.stdout).into_owned() + &String::from_utf8_lossy(&tried.stderr);
    assert!(tried.status.success(), "{words}");
}

/// More devices than the rate allows for minutes, more handshakes than their budget, and a hold of eight seconds.
async fn storm(scene: &Scene, folder: &Path) {
    let broker = Stub::content().await;
    let daemon = Daemon::start_as(
        "storm",
        scene,
        broker.address(),
        &[
            ("admission.rate", "1"),
            ("admission.burst", "1"),
            ("admission.max_wait", "\"8s\""),
            ("handshake.full_rate", "20"),
            ("handshake.full_burst", "20"),
        ],
    );
    let recording = Recording::start(&[("storm", daemon.admin())]);
    recording.until(BEGIN).await;
    let _fleet = fleet(
        &daemon,
        240,
        Duration::from_secs(10),
        Duration::from_secs(5),
        None,
    );
    recording.until(185).await;
    let firing = ["SeawallStorm", "SeawallShedding", "SeawallLongHold"];
    recording.finish(
        folder,
        "storm",
        &[
            Expected::nothing(BEGIN),
            Expected::at(180, &firing).and_perhaps(&["SeawallHeldClientsLeave"]),
        ],
    );
}

/// Clients that wait for two seconds, and a hold of eight.
async fn impatient(scene: &Scene, folder: &Path) {
    let broker = Stub::content().await;
    let daemon = Daemon::start_as(
        "impatient",
        scene,
        broker.address(),
        &[
            ("admission.rate", "1"),
            ("admission.burst", "1"),
            ("admission.max_wait", "\"8s\""),
        ],
    );
    let recording = Recording::start(&[("impatient", daemon.admin())]);
    recording.until(BEGIN).await;
    let stay = Some(Duration::from_millis(500));
    let _fleet = fleet(&daemon, 20, Duration::from_secs(2), Duration::from_secs(1), stay);
    recording.until(140).await;
    recording.finish(
        folder,
        "impatient",
        &[
            Expected::nothing(BEGIN),
            Expected::at(135, &["SeawallHeldClientsLeave"]).and_perhaps(&["SeawallStorm", "SeawallLongHold"]),
        ],
    );
}

/// The only broker goes away and comes back.
async fn broker_dies(scene: &Scene, folder: &Path) {
    let broker = Stub::content().await;
    let address = broker.address();
    let daemon = Daemon::start_as("broker-dies", scene, address, &[]);
    let recording = Recording::start(&[("broker-dies", daemon.admin())]);
    let stay = Some(Duration::from_millis(500));
    let _fleet = fleet(&daemon, 10, Duration::from_secs(5), Duration::from_secs(1), stay);
    recording.until(BEGIN + 1).await;
    drop(broker);
    recording.until(110).await;
    let _broker = Stub::start_at(address, |mut link| async move {
        link.accept().await;
        link.listen().await;
    })
    .await;
    recording.until(200).await;
    recording.finish(
        folder,
        "broker-dies",
        &[
            Expected::nothing(BEGIN),
            Expected::at(105, &["SeawallNoBroker", "SeawallBreakerOpen"]),
            Expected::nothing(195),
        ],
    );
}

/// The broker's authentication says no to everybody.
async fn authentication(scene: &Scene, folder: &Path) {
    let broker = Stub::start(|mut link| async move {
        link.packet().await;
        link.send(&crate::rig::packet::connack_v3(5)).await;
    })
    .await;
    let daemon = Daemon::start_as("authentication", scene, broker.address(), &[]);
    let recording = Recording::start(&[("authentication", daemon.admin())]);
    recording.until(BEGIN).await;
    let _fleet = fleet(&daemon, 20, Duration::from_secs(5), Duration::from_secs(3), None);
    recording.until(140).await;
    recording.finish(
        folder,
        "authentication",
        &[
            Expected::nothing(BEGIN),
            Expected::at(135, &["SeawallFleetNotAuthorized"]),
        ],
    );
}

/// A broker that takes three seconds, whatever is asked of it.
async fn slow_broker(scene: &Scene, folder: &Path) {
    let broker = Stub::start(|mut link| async move {
        link.packet().await;
        tokio::time::sleep(Duration::from_secs(3)).await;
        link.send(&crate::rig::packet::accepted(4)).await;
        link.listen().await;
    })
    .await;
    let daemon = Daemon::start_as(
        "slow-broker",
        scene,
        broker.address(),
        &[("admission.adaptive.enabled", "true")],
    );
    let recording = Recording::start(&[("slow-broker", daemon.admin())]);
    recording.until(BEGIN).await;
    let _fleet = fleet(&daemon, 60, Duration::from_secs(5), Duration::from_secs(5), None);
    recording.until(190).await;
    let firing = ["SeawallAdaptiveAtFloor", "SeawallBrokerSlow", "SeawallStorm"];
    recording.finish(
        folder,
        "slow-broker",
        &[Expected::nothing(BEGIN), Expected::at(185, &firing)],
    );
}

/// Files that run out: ours in three days, one revocation list in two hours, the other yesterday. Devices that do not
/// know our authority. Then a renewal that goes wrong.
async fn certificates(scene: &Scene, folder: &Path) {
    let now = OffsetDateTime::now_utc();
    let hours = time::Duration::hours;
    for (name, ends) in [("soon", now + hours(2)), ("past", now - hours(24))] {
        authority_with_list(scene, name, ends);
    }
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(["localhost".to_owned()]).unwrap();
    params.not_after = now + hours(72);
    scene.write("ending.pem", &params.self_signed(&key).unwrap().pem());
    scene.write("ending.key", &key.serialize_pem());
    let both = std::fs::read_to_string(scene.path("soon.pem")).unwrap()
        + &std::fs::read_to_string(scene.path("past.pem")).unwrap();
    scene.write("clients.pem", &both);
    let path = |name: &str| format!("{:?}", scene.text_path(name));
    let lists = format!("[{}, {}]", path("soon.crl"), path("past.crl"));
    let daemon = Daemon::start_as(
        "certificates",
        scene,
        nobody().await,
        &[
            ("tls.certificate", &path("ending.pem")),
            ("tls.private_key", &path("ending.key")),
            ("tls.client_auth", "\"optional\""),
            ("tls.client_ca", &path("clients.pem")),
            ("tls.client_crl", &lists),
        ],
    );
    let recording = Recording::start(&[("certificates", daemon.admin())]);
    recording.until(BEGIN).await;
    let mut strangers = JoinSet::new();
    for _ in 0..5 {
        let address = daemon.address();
        strangers.spawn(async move {
            loop {
                trust_nobody(address).await;
                tokio::time::sleep(Duration::from_secs(2)).await;
            }
        });
    }
    scene.write("ending.pem", "a renewal that went wrong\n");
    recording.until(140).await;
    let from_the_start = [
        "SeawallCertificateEnds",
        "SeawallRevocationListEnds",
        "SeawallRevocationListExpired",
    ];
    let later = ["SeawallCertificateNotAccepted", "SeawallReloadRefused"];
    recording.finish(
        folder,
        "certificates",
        &[
            Expected::at(BEGIN, &from_the_start),
            Expected::at(135, &[&from_the_start[..], &later].concat()),
        ],
    );
}

/// Nearly as many sessions as the descriptors are enough for.
async fn limits(scene: &Scene, folder: &Path) {
    let broker = Stub::content().await;
    let file = scene.write("limits.toml", &configuration(scene, broker.address(), &[]));
    let daemon = Daemon::launch(
        Command::new("sh")
            .arg("-c")
            .arg("ulimit -n 400; exec \"$0\" run --config \"$1\"")
            .arg(binary())
            .arg(file),
    );
    let recording = Recording::start(&[("limits", daemon.admin())]);
    recording.until(BEGIN).await;
    let _fleet = fleet(
        &daemon,
        180,
        Duration::from_secs(10),
        Duration::from_secs(5),
        None,
    );
    recording.until(100).await;
    let firing = ["SeawallConnectionsNearLimit", "SeawallDescriptorsNearLimit"];
    recording.finish(
        folder,
        "limits",
        &[Expected::nothing(BEGIN), Expected::at(95, &firing)],
    );
}

/// Dials from an address that this host does not have.
async fn no_port(scene: &Scene, folder: &Path) {
    let broker = Stub::content().await;
    let settings = [("upstream.source_addresses", "[\"192.0.2.1\"]")];
    let daemon = Daemon::start_as("no-port", scene, broker.address(), &settings);
    let recording = Recording::start(&[("no-port", daemon.admin())]);
    recording.until(BEGIN).await;
    let _fleet = fleet(&daemon, 5, Duration::from_secs(5), Duration::from_secs(1), None);
    recording.until(70).await;
    recording.finish(
        folder,
        "no-port",
        &[
            Expected::nothing(BEGIN),
            Expected::at(65, &["SeawallNoPort"]).and_perhaps(&["SeawallNoBroker", "SeawallBreakerOpen"]),
        ],
    );
}

/// The audit log's folder is taken away; later the whole daemon is.
async fn audit(scene: &Scene, folder: &Path) {
    let broker = Stub::content().await;
    std::fs::create_dir(scene.path("audit")).unwrap();
    let path = format!("{:?}", scene.text_path("audit/audit.jsonl"));
    let daemon = Daemon::start_as("audit", scene, broker.address(), &[("audit.path", &path)]);
    let recording = Recording::start(&[("audit", daemon.admin())]);
    let stay = Some(Duration::from_millis(500));
    let _fleet = fleet(&daemon, 5, Duration::from_secs(5), Duration::from_secs(1), stay);
    recording.until(BEGIN + 1).await;
    std::fs::remove_dir_all(scene.path("audit")).unwrap();
    recording.until(101).await;
    drop(daemon);
    recording.until(160).await;
    recording.finish(
        folder,
        "audit",
        &[
            Expected::nothing(BEGIN),
            Expected::at(95, &["SeawallAuditDropping"]),
            Expected::at(155, &["SeawallDown"]),
        ],
    );
}

/// Two replicas: one with other settings, which the broker does not want to see.
async fn replicas(scene: &Scene, folder: &Path) {
    let other: SocketAddr = ([127, 0, 0, 2], 0).into();
    let broker = Stub::start(move |mut link| async move {
        if link.peer().ip() == other.ip() {
            return;
        }
        link.accept().await;
        link.listen().await;
    })
    .await;
    let one = Daemon::start_as("replica-1", scene, broker.address(), &[]);
    let settings = [
        ("upstream.source_addresses", "[\"127.0.0.2\"]"),
        ("admission.rate", "50"),
    ];
    let two = Daemon::start_as("replica-2", scene, broker.address(), &settings);
    let recording = Recording::start(&[("replica-1", one.admin()), ("replica-2", two.admin())]);
    recording.until(BEGIN).await;
    let stay = Some(Duration::from_millis(500));
    let _fleet = fleet(&one, 5, Duration::from_secs(5), Duration::from_secs(1), stay);
    let _other_fleet = fleet(&two, 5, Duration::from_secs(5), Duration::from_secs(1), stay);
    recording.until(160).await;
    let firing = [
        "SeawallReplicasDiffer",
        "SeawallReplicasDisagree",
        "SeawallNoBroker",
        "SeawallBreakerOpen",
    ];
    recording.finish(
        folder,
        "replicas",
        &[Expected::nothing(BEGIN), Expected::at(155, &firing)],
    );
}

/// The server of the shared budget dies and is started anew, empty.
async fn shared_budget(scene: &Scene, folder: &Path) {
    let broker = Stub::content().await;
    let redis = Redis::start(scene, &[]);
    let (store, url) = (redis.address(), format!("\"redis://{}\"", redis.address()));
    let settings = [("shared_budget.redis", url.as_str())];
    let daemon = Daemon::start_as("shared-budget", scene, broker.address(), &settings);
    let recording = Recording::start(&[("shared-budget", daemon.admin())]);
    recording.until(BEGIN + 1).await;
    drop(redis);
    recording.until(116).await;
    let _redis = Redis::again(scene, store);
    recording.until(140).await;
    recording.finish(
        folder,
        "shared-budget",
        &[
            Expected::nothing(BEGIN),
            Expected::at(115, &["SeawallSharedBudgetStale"]),
            Expected::nothing(135),
        ],
    );
}

/// Devices that come again and again; who gets in stays for ever, or for `stay`.
fn fleet(
    daemon: &Daemon,
    devices: usize,
    patience: Duration,
    retry: Duration,
    stay: Option<Duration>,
) -> JoinSet<()> {
    let address = daemon.address();
    let mut fleet = JoinSet::new();
    for number in 0..devices {
        fleet.spawn(async move {
            let id = format!("device-{number}");
            loop {
                let connect = Connect {
                    username: Some("device"),
                    password: Some(b"secret"),
                    ..Connect::v311(&id)
                };
                let joining = Device::try_join(address, connect);
                if let Ok(Ok(session)) = tokio::time::timeout(patience, joining).await {
                    let Some(stay) = stay else {
                        std::future::pending::<()>().await;
                        drop(session);
                        return;
                    };
                    tokio::time::sleep(stay).await;
                    session.close().await;
                }
                tokio::time::sleep(retry).await;
            }
        });
    }
    fleet
}

async fn trust_nobody(address: SocketAddr) {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let settings = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth();
    if let Ok(tcp) = TcpStream::connect(address).await {
        let name = ServerName::try_from("localhost").unwrap();
        let _ = TlsConnector::from(Arc::new(settings)).connect(name, tcp).await;
    }
}
