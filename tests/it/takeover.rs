//! The change from one process to the next, and what a service manager is told and hands over.

use crate::rig::daemon::{binary, configuration};
use crate::rig::device::tls_settings;
use crate::rig::http;
use crate::rig::packet::{PINGREQ, accepted};
use crate::rig::{Connect, Daemon, Device, PATIENCE, Scene, Stub, eventually, long, report, within};
use rustix::process::Signal;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, HandshakeKind};
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;

/// Addresses that were free a moment ago: both processes have the same file.
fn free() -> SocketAddr {
    std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
}

fn start(file: &std::path::Path) -> Daemon {
    Daemon::launch(Command::new(binary()).arg("run").arg("--config").arg(file))
}

/// A session with a broker, from the first SYN to a clean end; whether it was resumed.
async fn visit(address: SocketAddr, settings: Arc<ClientConfig>, number: usize) -> Result<bool, String> {
    let failed = |step: &'static str| move |error: std::io::Error| format!("{number}: {step}: {error}");
    let tcp = TcpStream::connect(address).await.map_err(failed("connect"))?;
    let name = ServerName::try_from("localhost").unwrap();
    let mut stream = TlsConnector::from(settings)
        .connect(name, tcp)
        .await
        .map_err(failed("TLS"))?;
    let connect = Connect::v311("visitor").bytes();
    stream.write_all(&connect).await.map_err(failed("CONNECT"))?;
    let mut connack = [0; 4];
    stream.read_exact(&mut connack).await.map_err(failed("CONNACK"))?;
    if connack[..] != accepted(4)[..] {
        return Err(format!("{number}: refused: {connack:02x?}"));
    }
    let resumed = stream.get_ref().1.handshake_kind() == Some(HandshakeKind::Resumed);
    let _ = stream.shutdown().await;
    Ok(resumed)
}

/// Who is told to end while the next process comes still hands over to it, and answers nobody "draining" in its place.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_process_that_drains_hands_over_to_the_next() {
    let scene = Scene::new();
    let broker = Stub::content().await;
    let (address, admin) = (free(), free());
    let values = [
        format!("[\"{address}\"]"),
        format!("\"{admin}\""),
        format!("{:?}", scene.text_path("takeover")),
    ];
    let settings = [
        ("listen.addresses", values[0].as_str()),
        ("admin.address", &values[1]),
        ("listen.takeover", &values[2]),
        ("drain.spread", "\"6s\""),
    ];
    let file = scene.write(
        "seawall.toml",
        &configuration(&scene, broker.address(), &settings),
    );
    let before = start(&file);
    let mut stays = Vec::new();
    for number in 0..4 {
        let name = format!("stays-{number}");
        stays.push(Device::join(&before, Connect::v311(&name)).await);
    }
    before.signal(Signal::TERM);
    before
        .metrics_until("a drain", |metrics| {
            metrics.sum("seawall_connections_open", &[("phase", "relaying")]) < 4.0
        })
        .await;
    let after = tokio::task::spawn_blocking(move || start(&file)).await.unwrap();
    for number in 0..20 {
        visit(address, Arc::clone(tls_settings()), number).await.unwrap();
    }
    after.counts("seawall_connections_total", &[], 20.0).await;
    let status = tokio::task::spawn_blocking(move || before.wait_for_end(PATIENCE));
    assert_eq!(status.await.unwrap().code(), Some(0));
    let rate = after.metrics().await.sum("seawall_admission_rate", &[]);
    assert_eq!(rate, 100_000.0, "the whole rate");
}

/// A change in the middle of a storm: both processes together send the broker no more than one would.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn two_processes_have_one_budget_while_one_follows_the_other() {
    const RATE: usize = 100;
    const WINDOW: Duration = Duration::from_millis(500);
    let scene = Scene::new();
    let broker = Stub::content().await;
    let (address, admin) = (free(), free());
    let values = [
        format!("[\"{address}\"]"),
        format!("\"{admin}\""),
        format!("{:?}", scene.text_path("takeover")),
    ];
    let settings = [
        ("listen.addresses", values[0].as_str()),
        ("admin.address", &values[1]),
        ("listen.takeover", &values[2]),
        ("admission.rate", "100"),
        ("admission.burst", "100"),
        ("admission.max_wait", "\"2s\""),
        ("drain.spread", "\"1s\""),
    ];
    let file = scene.write(
        "seawall.toml",
        &configuration(&scene, broker.address(), &settings),
    );
    let before = start(&file);

    let storm = tokio::spawn(async move {
        let begun = Instant::now();
        let mut visits = JoinSet::new();
        for number in 0.. {
            if begun.elapsed() > Duration::from_secs(6) {
                break;
            }
            // Four times the rate.
            tokio::time::sleep_until((begun + Duration::from_micros(2_500) * number).into()).await;
            visits.spawn(visit(address, Arc::clone(tls_settings()), number as usize));
        }
        visits.join_all().await;
    });
    // The burst is gone by then, and so many are held.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let after = tokio::task::spawn_blocking(move || start(&file)).await.unwrap();
    let changed = broker.visits();
    let mut most = 0;
    let mut last = changed;
    let watched = Instant::now();
    while watched.elapsed() < Duration::from_secs(3) {
        tokio::time::sleep(WINDOW).await;
        let now = broker.visits();
        most = most.max(now - last);
        last = now;
    }
    let a_second = (last - changed) as f64 / watched.elapsed().as_secs_f64();
    report(&format!(
        "{a_second:.0} a second in the three seconds after the change, at most {most} in half a second, of a rate of {RATE}"
    ));
    // The successor's bucket begins with half of the burst.
    assert!(a_second < RATE as f64 * 1.05 + 50.0 / 3.0, "{a_second}");
    assert!(a_second > RATE as f64 * 0.8, "{a_second}");
    assert!(most <= RATE / 2 + 50 + 10, "{most} within {WINDOW:?}");
    let status = tokio::task::spawn_blocking(move || before.wait_for_end(Duration::from_secs(30)));
    assert_eq!(status.await.unwrap().code(), Some(0));
    after
        .metrics_until("the whole rate", |metrics| {
            metrics.sum("seawall_admission_rate", &[]) == RATE as f64
        })
        .await;
    within(PATIENCE * 2, "the storm's end", storm).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn nobody_notices_the_change_to_the_next_process() {
    let a_second = if long() { 300 } else { 20 };
    let scene = Scene::alone();
    let broker = Stub::content().await;
    let (address, admin) = (free(), free());
    let secret = scene.write("secret", &"0123456789abcdef".repeat(4));
    std::fs::set_permissions(&secret, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let values = [
        format!("[\"{address}\"]"),
        format!("\"{admin}\""),
        format!("{:?}", scene.text_path("takeover")),
        format!("{:?}", scene.text_path("secret")),
        format!("{:?}", scene.text_path("audit.jsonl")),
    ];
    let settings = [
        ("listen.addresses", values[0].as_str()),
        ("admin.address", &values[1]),
        ("listen.takeover", &values[2]),
        ("tls.resumption.secret_file", &values[3]),
        ("audit.path", &values[4]),
        ("drain.spread", "\"2s\""),
    ];
    let file = scene.write(
        "seawall.toml",
        &configuration(&scene, broker.address(), &settings),
    );
    let before = start(&file);
    let mut stays = Device::join(&before, Connect::v311("stays")).await;

    // One client with a store of tickets for each of them that are open at a time.
    let mut client = tls_settings().as_ref().clone();
    client.resumption = rustls::client::Resumption::in_memory_sessions(64);
    let client = Arc::new(client);
    let visiting = tokio::spawn(async move {
        let begun = Instant::now();
        let mut visits = JoinSet::new();
        let mut number = 0;
        while begun.elapsed() < Duration::from_secs(6) {
            tokio::time::sleep_until((begun + Duration::from_secs(1) * number / a_second).into()).await;
            visits.spawn(visit(address, Arc::clone(&client), number as usize));
            number += 1;
        }
        let outcomes = visits.join_all().await;
        let resumed = outcomes.iter().filter(|outcome| **outcome == Ok(true)).count();
        let failed: Vec<String> = outcomes
            .iter()
            .filter_map(|outcome| outcome.clone().err())
            .collect();
        (outcomes.len(), resumed, failed)
    });
    tokio::time::sleep(Duration::from_secs(2)).await;
    // Waiting for it must not hold up the visitors.
    let path = file.clone();
    let after = tokio::task::spawn_blocking(move || start(&path)).await.unwrap();
    let changed = Instant::now();
    // A session of the old process lives until it is told, and then is told.
    stays.send(&PINGREQ).await;
    let status = tokio::task::spawn_blocking(move || before.wait_for_end(Duration::from_secs(30)));
    let (_, end) = stays.rest(PATIENCE).await;
    assert_eq!(end, crate::rig::End::Clean);
    assert_eq!(status.await.unwrap().code(), Some(0));
    let drained = changed.elapsed();

    let (visits, resumed, failed) = within(PATIENCE, "all visits", visiting).await.unwrap();
    let served = after.metrics().await.sum("seawall_connections_total", &[]);
    report(&format!(
        "{visits} visits at {a_second} a second, {served} of them to the next process, {resumed} resumed; the one before \
         ended after {drained:.1?}"
    ));
    assert!(failed.is_empty(), "{failed:?}");
    assert!(served >= f64::from(a_second), "the next process serves: {served}");
    assert!(
        resumed as f64 >= 0.9 * visits as f64,
        "{resumed} of {visits} resumed"
    );

    // Two chains, each whole, and nothing lost.
    let logs = [
        scene.path("audit.jsonl"),
        scene.path(&format!("audit-drain-{}.jsonl", id_of(&scene))),
    ];
    let text: Vec<String> = logs
        .iter()
        .map(|log| std::fs::read_to_string(log).unwrap())
        .collect();
    assert!(
        text[0].contains("\"stop\"") && text[1].contains("\"drained\""),
        "{}",
        text[1]
    );

    // And once more.
    let next = start(&file);
    assert_eq!(after.wait_for_end(Duration::from_secs(30)).code(), Some(0));
    let _device = Device::join(&next, Connect::v311("later")).await;
}

/// The process that wrote its audit aside, as the name of that file has it.
fn id_of(scene: &Scene) -> String {
    let names = std::fs::read_dir(scene.path("")).unwrap();
    let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let aside = names.filter_map(|name| {
        let id = name.strip_prefix("audit-drain-")?.strip_suffix(".jsonl")?;
        Some(id.to_owned())
    });
    aside.collect::<Vec<_>>().pop().unwrap()
}

#[tokio::test]
async fn a_next_process_that_can_not_start_changes_nothing() {
    let scene = Scene::new();
    let broker = Stub::content().await;
    let (address, admin) = (free(), free());
    let values = [
        format!("[\"{address}\"]"),
        format!("\"{admin}\""),
        format!("{:?}", scene.text_path("takeover")),
    ];
    let settings = [
        ("listen.addresses", values[0].as_str()),
        ("admin.address", &values[1]),
        ("listen.takeover", &values[2]),
    ];
    let file = scene.write(
        "seawall.toml",
        &configuration(&scene, broker.address(), &settings),
    );
    let daemon = start(&file);
    // It gets the sockets, and then finds that it can't write its audit.
    let bad = [&settings[..], &[("audit.path", "\"/nowhere/audit.jsonl\"")]].concat();
    let bad = scene.write("bad.toml", &configuration(&scene, broker.address(), &bad));
    let mut command = Command::new(binary());
    let finished = crate::rig::process::run(
        "seawall",
        command.arg("run").arg("--config").arg(bad).env_clear(),
        PATIENCE,
    );
    assert_eq!(finished.code, Some(71), "{}", finished.stderr);
    eventually("the one that runs has noticed", || {
        daemon.stderr().contains("the process that took over has gone")
    })
    .await;
    let _device = Device::join(&daemon, Connect::v311("one")).await;
    assert_eq!(http::get(admin, "/readyz").await.status, 200);
}

#[tokio::test]
async fn the_sockets_of_a_service_manager_are_served() {
    let scene = Scene::new();
    let broker = Stub::content().await;
    let file = scene.write("seawall.toml", &configuration(&scene, broker.address(), &[]));
    let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    // Inherited by the shell, which gives it the number that the protocol says.
    rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::empty()).unwrap();
    let script = format!(
        "LISTEN_PID=$$ LISTEN_FDS=1 exec \"$0\" run --config \"$1\" 3<&{}",
        socket.as_raw_fd()
    );
    let daemon = Daemon::launch(
        // dash takes no number above 9.
        Command::new("/bin/bash")
            .args(["-c", &script])
            .arg(binary())
            .arg(file),
    );
    assert_eq!(daemon.address(), address);
    // Who came before it was ready is served as well.
    let _device = Device::join(&daemon, Connect::v311("one")).await;
}

#[tokio::test]
async fn a_service_manager_is_told_how_it_goes() {
    let scene = Scene::new();
    let broker = Stub::content().await;
    let file = scene.write("seawall.toml", &configuration(&scene, broker.address(), &[]));
    let path = scene.path("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(PATIENCE)).unwrap();
    let told = |wanted: &str| {
        let from = Instant::now();
        while from.elapsed() < PATIENCE {
            let mut bytes = [0; 1024];
            let count = manager.recv(&mut bytes).unwrap();
            let message = String::from_utf8(bytes[..count].to_vec()).unwrap();
            if message.contains(wanted) {
                return message;
            }
        }
        panic!("{wanted} is not told");
    };
    let mut command = Command::new("/usr/bin/env");
    command.arg(format!("NOTIFY_SOCKET={}", path.display()));
    command.arg("WATCHDOG_USEC=600000");
    let daemon = Daemon::launch(command.arg(binary()).arg("run").arg("--config").arg(file));
    assert_eq!(told("READY"), "READY=1");
    let _device = Device::join(&daemon, Connect::v311("one")).await;
    let message = told("1 relayed");
    assert!(message.starts_with("WATCHDOG=1\nSTATUS="), "{message}");
    daemon.signal(Signal::HUP);
    let message = told("RELOADING=1");
    assert!(message.contains("\nMONOTONIC_USEC="), "{message}");
    assert_eq!(told("READY"), "READY=1");
    daemon.signal(Signal::TERM);
    assert!(told("STOPPING=1").contains("EXTEND_TIMEOUT_USEC="));
    told("draining: ");
}

#[tokio::test]
async fn a_token_opens_the_admin_pages_and_a_new_one_is_read() {
    let scene = Scene::new();
    let broker = Stub::content().await;
    let (one, other) = ("0123456789abcdef", "fedcba9876543210");
    let token = scene.write("token", one);
    std::fs::set_permissions(&token, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let value = format!("{:?}", scene.text_path("token"));
    let settings = [
        ("admin.token_file", value.as_str()),
        ("admin.address", "\"0.0.0.0:0\""),
    ];
    let daemon = Daemon::start(&scene, broker.address(), &settings);
    let admin = SocketAddr::from(([127, 0, 0, 1], daemon.admin().port()));
    let get = async |path: &str, header: String| {
        let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\n{header}connection: close\r\n\r\n");
        http::request(admin, &request).await
    };
    let bearer = |token: &str| format!("authorization: Bearer {token}\r\n");
    for path in ["/metrics", "/status", "/", "/events", "/nothing"] {
        let answer = get(path, String::new()).await;
        assert_eq!(answer.status, 401, "{path}");
        assert!(
            answer
                .head
                .to_ascii_lowercase()
                .contains("www-authenticate: bearer"),
            "{}",
            answer.head
        );
        assert_eq!(get(path, bearer(other)).await.status, 401, "{path}");
    }
    for path in ["/healthz", "/readyz"] {
        assert_eq!(get(path, String::new()).await.status, 200, "{path}");
    }
    assert_eq!(get("/metrics", bearer(one)).await.status, 200);
    std::fs::write(&token, other).unwrap();
    daemon.signal(Signal::HUP);
    let from = Instant::now();
    while get("/metrics", bearer(other)).await.status != 200 {
        assert!(from.elapsed() < PATIENCE, "{}", daemon.stderr());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(get("/metrics", bearer(one)).await.status, 401);
    assert!(!daemon.stderr().contains("is open to whoever reaches it"));
    assert!(!daemon.stderr().contains(one) && !daemon.stderr().contains(other));
}

#[tokio::test]
async fn the_admin_pages_come_over_tls_where_that_is_asked_for_and_open_ones_are_warned_of() {
    let scene = Scene::new();
    let broker = Stub::content().await;
    let open = Daemon::start(&scene, broker.address(), &[("admin.address", "\"0.0.0.0:0\"")]);
    assert!(
        open.stderr().contains("is open to whoever reaches it"),
        "{}",
        open.stderr()
    );
    drop(open);
    let values = ["ecdsa.pem", "ecdsa.key"].map(|name| format!("{:?}", scene.text_path(name)));
    let settings = [
        ("admin.tls.certificate", values[0].as_str()),
        ("admin.tls.private_key", values[1].as_str()),
    ];
    let daemon = Daemon::start(&scene, broker.address(), &settings);
    let tcp = TcpStream::connect(daemon.admin()).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let mut stream = TlsConnector::from(Arc::clone(tls_settings()))
        .connect(name, tcp)
        .await
        .unwrap();
    stream
        .write_all(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n")
        .await
        .unwrap();
    let mut answer = String::new();
    // With close_notify, or it would be an error.
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(
        answer.starts_with("HTTP/1.1 200 OK") && answer.contains("seawall_build_info"),
        "{answer}"
    );
    // In the clear nothing comes.
    let mut tcp = TcpStream::connect(daemon.admin()).await.unwrap();
    tcp.write_all(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n")
        .await
        .unwrap();
    let mut answer = Vec::new();
    let _ = within(PATIENCE, "its end", tcp.read_to_end(&mut answer)).await;
    assert!(!String::from_utf8_lossy(&answer).contains("seawall"));
}
