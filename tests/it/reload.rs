//! SIGHUP and `reload.watch`: what takes effect while clients are connected, what does not, and what is told of it.

use crate::rig::daemon::{binary, configuration};
use crate::rig::packet::{self, PINGREQ, accepted, connack_v3};
use crate::rig::{Connect, Daemon, Device, PATIENCE, Scene, Stub, eventually, long, report, within};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::Signal;
use std::net::SocketAddr;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

/// A daemon and its file, which can be written anew.
struct Stage {
    scene: Scene,
    daemon: Daemon,
    upstream: SocketAddr,
}

impl Stage {
    fn new(scene: Scene, upstream: SocketAddr, settings: &[(&str, &str)]) -> Self {
        let daemon = Daemon::start(&scene, upstream, settings);
        Self {
            scene,
            daemon,
            upstream,
        }
    }

    fn write(&self, settings: &[(&str, &str)]) {
        let text = configuration(&self.scene, self.upstream, settings);
        self.scene.write("seawall.toml", &text);
    }

    /// Writes the file, sends SIGHUP and waits until that has come to `result` once more.
    async fn reload(&self, settings: &[(&str, &str)], result: &str) {
        self.write(settings);
        self.hang_up(result).await;
    }

    async fn hang_up(&self, result: &str) {
        let labels = [("result", result)];
        let before = self.daemon.metrics().await.sum("seawall_reloads_total", &labels);
        self.daemon.signal(Signal::HUP);
        self.daemon
            .counts("seawall_reloads_total", &labels, before + 1.0)
            .await;
    }
}

/// A broker that accepts every CONNECT and answers every PINGREQ, and notes when each CONNECT came.
async fn punctual() -> (SocketAddr, Arc<Mutex<Vec<Instant>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let arrivals = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&arrivals);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let noted = Arc::clone(&noted);
            tokio::spawn(async move {
                let mut buffer = [0; 256];
                if stream.read(&mut buffer).await.is_ok_and(|count| count > 0) {
                    noted.lock().unwrap().push(Instant::now());
                    let _ = stream.write_all(&accepted(4)).await;
                }
                while stream.read(&mut buffer).await.is_ok_and(|count| count > 0) {
                    let _ = stream.write_all(&[0xD0, 0]).await;
                }
            });
        }
    });
    (address, arrivals)
}

/// How many came within `time` of `from`.
fn within_the_first(arrivals: &[Instant], from: Instant, time: Duration) -> usize {
    arrivals
        .iter()
        .filter(|at| (from..from + time).contains(*at))
        .count()
}

#[tokio::test]
async fn a_pipe_in_place_of_a_file_is_refused_and_holds_up_no_reload_behind_it() {
    let broker = Stub::content().await;
    let stage = Stage::new(Scene::new(), broker.address(), &[]);
    let (file, pipe) = (stage.scene.path("seawall.toml"), stage.scene.path("pipe"));
    mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();

    std::fs::remove_file(&file).unwrap();
    std::os::unix::fs::symlink(&pipe, &file).unwrap();
    stage.hang_up("refused").await;
    std::fs::remove_file(&file).unwrap();
    let value = format!("{:?}", stage.scene.text_path("pipe"));
    stage.reload(&[("tls.certificate", &value)], "refused").await;

    stage.reload(&[("admission.rate", "77")], "done").await;
    let metrics = stage.daemon.metrics().await;
    assert!(
        (metrics.sum("seawall_admission_rate", &[]) - 77.0).abs() < f64::EPSILON,
        "{metrics}"
    );
    let log = stage.daemon.stderr();
    assert!(log.matches("it is a pipe").count() >= 2, "{log}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenfold_rate_takes_effect_at_once_under_load_and_nobody_is_lost() {
    let (live, waiting) = if long() { (2000, 1500) } else { (250, 700) };
    let (upstream, arrivals) = punctual().await;
    let stage = Stage::new(Scene::alone(), upstream, &[]);
    let address = stage.daemon.address();
    let mut sessions = join(address, "live", live).await;
    // From here on 50 a second, and as many as want to wait.
    let slow = [
        ("admission.rate", "50"),
        ("admission.burst", "10"),
        ("admission.max_wait", "\"60s\""),
    ];
    stage.reload(&slow, "done").await;
    let slowed = Instant::now();
    let mut crowd = JoinSet::new();
    for number in 0..waiting {
        crowd.spawn(async move { enter(address, &format!("waiting-{number}")).await });
        tokio::time::sleep(Duration::from_micros(500)).await;
    }
    stage
        .daemon
        .metrics_until("a crowd is held", |metrics| {
            let admitted = metrics.sum("seawall_connects_total", &[("decision", "admitted")]);
            let held = metrics.sum("seawall_connections_open", &[("phase", "held")]);
            held + admitted >= (live + waiting) as f64
        })
        .await;

    let fast = [
        ("admission.rate", "500"),
        ("admission.burst", "10"),
        ("admission.max_wait", "\"60s\""),
    ];
    stage.write(&fast);
    let switched = Instant::now();
    stage.daemon.signal(Signal::HUP);
    while let Some(entered) = within(PATIENCE, "everybody is in", crowd.join_next()).await {
        sessions.push(entered.unwrap());
    }
    assert_eq!(sessions.len(), live + waiting);

    let arrivals = arrivals.lock().unwrap().clone();
    let before = arrivals
        .iter()
        .filter(|at| (slowed..switched).contains(*at))
        .count() as f64;
    let slow_for = (switched - slowed).as_secs_f64();
    assert!(
        before <= 50.0 * slow_for + 12.0,
        "{before} in {slow_for:.2} s at 50/s"
    );
    let tenths: Vec<usize> = (1..=10)
        .map(|tenth| within_the_first(&arrivals, switched, Duration::from_millis(100 * tenth)))
        .collect();
    report(&format!(
        "{live} live; arrivals at the broker after SIGHUP 50/s -> 500/s, each 100 ms: {tenths:?}"
    ));
    for (tenth, count) in (1_u32..).zip(&tenths) {
        let most = 500.0 * f64::from(tenth) / 10.0 + 12.0;
        assert!(*count as f64 <= most, "{count} within {tenth} tenths of a second");
    }
    // Of the second tenth on it is the new rate, 50 in each; the old one would let 5 in.
    let second = tenths[1] - tenths[0];
    assert!(second >= 25, "not within 100 ms: {tenths:?}");

    for session in &mut sessions {
        session.send(&PINGREQ).await;
    }
    for session in &mut sessions {
        session.expect_packet(&[0xD0, 0]).await;
    }
}

async fn enter(address: SocketAddr, client: &str) -> Device {
    let mut device = Device::try_dial(address).await.expect("TLS");
    device.send(&Connect::v311(client).bytes()).await;
    let connack = device.packet_within(Duration::from_secs(60)).await;
    assert_eq!(connack, accepted(4), "{client}");
    device
}

async fn join(address: SocketAddr, name: &'static str, count: usize) -> Vec<Device> {
    let mut sessions = Vec::new();
    let mut joining = JoinSet::new();
    for number in 0..count {
        joining.spawn(async move { enter(address, &format!("{name}-{number}")).await });
        if joining.len() >= 32 {
            sessions.push(joining.join_next().await.unwrap().unwrap());
        }
    }
    while let Some(joined) = joining.join_next().await {
        sessions.push(joined.unwrap());
    }
    sessions
}

#[tokio::test]
async fn a_key_that_needs_a_restart_is_named_with_both_values_and_the_rest_takes_effect() {
    let broker = Stub::content().await;
    let scene = Scene::new();
    let audit = format!("{:?}", scene.text_path("audit.jsonl"));
    let stage = Stage::new(scene, broker.address(), &[("audit.path", &audit)]);
    let mixed = [
        ("audit.path", audit.as_str()),
        ("listen.backlog", "77"),
        ("admission.rate", "123"),
    ];
    stage.reload(&mixed, "partial").await;
    stage.daemon.counts("seawall_admission_rate", &[], 123.0).await;
    let log = stage.daemon.stderr();
    assert!(
        log.contains("listen.backlog: 4096 → 77: takes effect on restart alone"),
        "{log}"
    );
    assert!(log.contains("admission.rate: 100000 → 123"), "{log}");
    // Once more, and nothing is new but what can't be.
    stage.hang_up("refused").await;

    // What is kept must be legal with what changes.
    let authority = format!("{:?}", stage.scene.text_path("ca.pem"));
    let contradiction = [
        ("audit.path", audit.as_str()),
        ("tls.client_auth", "\"required\""),
        ("tls.client_ca", &authority),
        ("admission.rate", "321"),
    ];
    stage.reload(&contradiction, "refused").await;
    stage.daemon.counts("seawall_admission_rate", &[], 123.0).await;
    assert!(
        stage
            .daemon
            .stderr()
            .contains("tls.client_ca: no client is asked for a certificate")
    );

    let wanted = serde_json::json!({"admission.rate": {"from": 100_000, "to": 123}});
    let refused = serde_json::json!({"listen.backlog": {"from": 4096, "to": 77}});
    eventually("the audit log has the difference", || {
        let text = std::fs::read_to_string(stage.scene.path("audit.jsonl")).unwrap();
        text.lines().any(|line| {
            let line: serde_json::Value = serde_json::from_str(line).unwrap();
            line["event"] == "reload"
                && (line["result"].as_str(), line["why"].as_str()) == (Some("partial"), Some("SIGHUP"))
                && (&line["changed"], &line["refused"]) == (&wanted, &refused)
        })
    })
    .await;
}

#[tokio::test]
async fn a_bad_file_changes_nothing_and_is_one_line_and_a_count() {
    let broker = Stub::content().await;
    let stage = Stage::new(Scene::new(), broker.address(), &[("admission.rate", "7")]);
    let errors = |stage: &Stage| stage.daemon.stderr().matches("ERROR").count();
    for (number, settings) in (1..).zip([
        &[("admission.rate", "\"fast\""), ("refusal.method", "\"slam\"")][..],
        &[("admission.rate", "9"), ("admission.brust", "5")],
        &[
            ("admission.rate", "9"),
            ("tls.certificate", "\"/nowhere/cert.pem\""),
        ],
        &[
            ("admission.rate", "9"),
            ("audit.path", "\"/nowhere/audit.jsonl\""),
        ],
    ]) {
        stage.reload(settings, "refused").await;
        stage.daemon.counts("seawall_admission_rate", &[], 7.0).await;
        // What is on its way to us through the pipe may be behind the metric.
        eventually("its one error line", || errors(&stage) == number).await;
        let log = stage.daemon.stderr();
        let value = settings[1].1.trim_matches('"');
        assert!(log.contains(value), "{value} in {log}");
    }
    std::fs::remove_file(stage.scene.path("seawall.toml")).unwrap();
    stage.hang_up("refused").await;
    stage.daemon.counts("seawall_admission_rate", &[], 7.0).await;
    let _device = Device::join(&stage.daemon, Connect::v311("still served")).await;
}

#[tokio::test]
async fn brokers_and_lanes_come_and_go() {
    let (first, second) = (Stub::content().await, Stub::content().await);
    let stage = Stage::new(Scene::new(), first.address(), &[]);
    let mut before = Device::join(&stage.daemon, Connect::v311("before")).await;
    let (one, other) = (first.address().to_string(), second.address().to_string());

    let both = format!("[\"{other}\", \"{one}\"]");
    let lanes = "[{name = \"tablets\", client_id = \"tablet-*\"}]";
    let settings = [
        ("upstream.servers", both.as_str()),
        ("upstream.balance", "\"round-robin\""),
        ("admission.lanes", lanes),
    ];
    stage.reload(&settings, "done").await;
    let _sessions = [
        Device::join(&stage.daemon, Connect::v311("tablet-1")).await,
        Device::join(&stage.daemon, Connect::v311("meter-1")).await,
    ];
    assert_eq!((first.visits(), second.visits()), (2, 1));
    let metrics = stage
        .daemon
        .counts(
            "seawall_broker_connacks_total",
            &[("server", &other), ("code", "0")],
            1.0,
        )
        .await;
    let admitted = |lane| {
        metrics.sum(
            "seawall_connects_total",
            &[("decision", "admitted"), ("lane", lane)],
        )
    };
    assert_eq!((admitted("tablets"), admitted("default")), (1.0, 2.0));
    assert_eq!(metrics.sum("seawall_upstream_up", &[]), 2.0);

    // Another lane before it, and the first broker gone: what is counted is counted where it belongs.
    let only = format!("[\"{other}\"]");
    let lanes =
        "[{name = \"meters\", client_id = \"meter-*\"}, {name = \"tablets\", client_id = \"tablet-*\"}]";
    let settings = [("upstream.servers", only.as_str()), ("admission.lanes", lanes)];
    stage.reload(&settings, "done").await;
    let _more = [
        Device::join(&stage.daemon, Connect::v311("tablet-2")).await,
        Device::join(&stage.daemon, Connect::v311("meter-2")).await,
    ];
    assert_eq!((first.visits(), second.visits()), (2, 3));
    let metrics = stage.daemon.metrics().await;
    let admitted = |lane| {
        metrics.sum(
            "seawall_connects_total",
            &[("decision", "admitted"), ("lane", lane)],
        )
    };
    assert_eq!(
        (admitted("tablets"), admitted("meters"), admitted("default")),
        (2.0, 1.0, 2.0)
    );
    assert!(!metrics.has("seawall_upstream_up", &[("server", &one)]));
    assert_eq!(
        metrics.sum(
            "seawall_broker_connacks_total",
            &[("server", &one), ("code", "0")]
        ),
        2.0
    );
    // Who is with the broker that is gone stays there.
    before
        .send(&packet::publish(4, "topic", None, b"still here"))
        .await;
    let visit = first.visit(0).await;
    visit
        .received_at_least(Connect::v311("before").bytes().len() + 10)
        .await;
}

#[tokio::test]
async fn an_open_breaker_stays_open_for_the_broker_that_stays() {
    let dead = crate::rig::stub::nobody().await;
    let alive = Stub::content().await;
    let breaker = [
        ("upstream.breaker.failures", "1"),
        ("upstream.breaker.open_for", "\"30s\""),
        ("upstream.connect_timeout", "\"1s\""),
    ];
    let stage = Stage::new(Scene::new(), dead, &breaker);
    let mut device = Device::dial(&stage.daemon).await;
    device.send(&Connect::v311("one").bytes()).await;
    device.expect_packet(&connack_v3(3)).await;
    let open = [("server", &*dead.to_string())];
    stage.daemon.counts("seawall_upstream_breaker", &open, 2.0).await;

    let both = format!("[\"{}\", \"{dead}\"]", alive.address());
    let settings = [&breaker[..], &[("upstream.servers", both.as_str())]].concat();
    stage.reload(&settings, "done").await;
    let metrics = stage.daemon.metrics().await;
    assert_eq!(
        metrics.sum("seawall_upstream_breaker", &[]),
        2.0,
        "the new one is closed"
    );
    assert_eq!(metrics.sum("seawall_upstream_breaker", &open), 2.0);
    let _device = Device::join(&stage.daemon, Connect::v311("two")).await;
}

#[tokio::test]
async fn with_watch_a_change_of_the_file_is_taken_and_without_it_is_not() {
    let broker = Stub::content().await;
    let watching = [("reload.watch", "true"), ("admission.rate", "7")];
    let stage = Stage::new(Scene::new(), broker.address(), &watching);
    stage.write(&[("reload.watch", "true"), ("admission.rate", "8")]);
    stage.daemon.counts("seawall_admission_rate", &[], 8.0).await;
    // A folder that is swapped, as Kubernetes does it.
    let text = configuration(&stage.scene, stage.upstream, &[("admission.rate", "9")]);
    stage.scene.write("other.toml", &text);
    std::fs::remove_file(stage.scene.path("seawall.toml")).unwrap();
    std::os::unix::fs::symlink("other.toml", stage.scene.path("seawall.toml")).unwrap();
    stage.daemon.counts("seawall_admission_rate", &[], 9.0).await;
    // That one has turned it off.
    stage.scene.write("other.toml", &text.replace("= 9", "= 10"));
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(
        stage.daemon.metrics().await.sum("seawall_admission_rate", &[]),
        9.0
    );
    stage.hang_up("done").await;
    stage.daemon.counts("seawall_admission_rate", &[], 10.0).await;
}

#[tokio::test]
async fn signals_in_a_row_and_one_during_the_drain() {
    let broker = Stub::content().await;
    let stage = Stage::new(Scene::new(), broker.address(), &[]);
    let _session = Device::join(&stage.daemon, Connect::v311("live")).await;
    for rate in 1..=40 {
        stage.write(&[("admission.rate", &rate.to_string())]);
        stage.daemon.signal(Signal::HUP);
    }
    // However many were merged: the last file counts.
    stage.daemon.counts("seawall_admission_rate", &[], 40.0).await;

    // A file that is as slow as can be to read, then the end of the process in the middle of it.
    stage.write(&[("admission.rate", "41")]);
    stage.daemon.signal(Signal::HUP);
    stage.daemon.signal(Signal::TERM);
    stage.daemon.signal(Signal::HUP);
    let Stage { daemon, .. } = stage;
    assert_eq!(daemon.wait_for_end(Duration::from_secs(45)).code(), Some(0));
}

#[tokio::test]
async fn the_audit_log_and_the_level_of_the_log_change() {
    let broker = Stub::content().await;
    let scene = Scene::new();
    let paths = ["one.jsonl", "two.jsonl"].map(|name| format!("{:?}", scene.text_path(name)));
    let stage = Stage::new(scene, broker.address(), &[("audit.path", &paths[0])]);
    let _first = Device::join(&stage.daemon, Connect::v311("first-client")).await;
    let settings = [("audit.path", paths[1].as_str()), ("log.level", "\"debug\"")];
    stage.reload(&settings, "done").await;
    Device::join(&stage.daemon, Connect::v311("second-client"))
        .await
        .close()
        .await;
    stage.daemon.counts("seawall_closed_total", &[], 1.0).await;
    stage.reload(&[], "done").await;
    Device::join(&stage.daemon, Connect::v311("third-client"))
        .await
        .close()
        .await;
    stage.daemon.counts("seawall_closed_total", &[], 2.0).await;
    let log = stage.daemon.stderr();
    assert!(
        log.contains("second-client") && !log.contains("third-client"),
        "{log}"
    );
    let text = |name| std::fs::read_to_string(stage.scene.path(name)).unwrap();
    eventually("both logs are closed", || {
        text("one.jsonl").contains("\"stop\"") && text("two.jsonl").contains("\"stop\"")
    })
    .await;
    let all = text("one.jsonl") + &text("two.jsonl");
    assert!(text("one.jsonl").contains("first-client") && text("two.jsonl").contains("second-client"));
    assert!(!text("one.jsonl").contains("second-client") && !all.contains("third-client"));
    assert_eq!(
        stage
            .daemon
            .metrics()
            .await
            .sum("seawall_audit_dropped_total", &[]),
        0.0
    );
}

/// What was set by flag and environment at the start still beats the file.
#[tokio::test]
async fn flags_and_environment_of_the_start_still_count() {
    let broker = Stub::content().await;
    let scene = Scene::new();
    let text = |settings: &[(&str, &str)]| configuration(&scene, broker.address(), settings);
    let file = scene.write("seawall.toml", &text(&[]));
    let mut command = Command::new(binary());
    command.arg("run").arg("--config").arg(&file);
    command.args(["--set", "admission.rate=11"]);
    let daemon = Daemon::launch(&mut command);
    scene.write(
        "seawall.toml",
        &text(&[("admission.rate", "22"), ("admission.max_in_flight", "33")]),
    );
    daemon.signal(Signal::HUP);
    let metrics = daemon.counts("seawall_admission_window", &[], 33.0).await;
    assert_eq!(metrics.sum("seawall_admission_rate", &[]), 11.0);
}
