//! Seawall beside HAProxy and nginx (stream), in one run on one machine with real Mosquitto behind: the processor time
//! of the proxy's own process, user and system, for each operation. Ratios count; absolute figures are the machine's.
//!
//! `cargo bench --bench beside` (needs haproxy, nginx with its stream module, mosquitto). `SEAWALL_BENCH_OPERATIONS`
//! sets the operations a row, 3000 by default. `cargo bench --bench beside -- "resumed TLS 1.2"` measures the rows of
//! admissions with these words alone.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::doc_markdown,
    clippy::float_cmp,
    unreachable_pub,
    missing_docs,
    dead_code,
    unused_imports,
    reason = "a bench ends by panicking, shows its figures, and uses a part of the tests' rig"
)]

#[path = "../tests/it/rig/mod.rs"]
mod rig;

use std::net::{SocketAddr, TcpListener};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rig::daemon::Daemon;
use rig::device::settings_for;
use rig::process::Process;
use rig::{Connect, Mosquitto, Scene, packet};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, SupportedProtocolVersion};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Clients at a time: enough to keep a proxy busy, few enough to leave the other core to the clients.
const SIDE_BY_SIDE: usize = 8;
/// Idle connections that memory is measured with.
const IDLE: usize = 2_000;

fn main() {
    // `cargo test --benches` runs this as well; only `cargo bench` asks for figures.
    if !std::env::args().any(|argument| argument == "--bench") {
        return;
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(measure());
}

fn operations() -> usize {
    std::env::var("SEAWALL_BENCH_OPERATIONS")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(3_000)
}

async fn measure() {
    let wanted = std::env::args()
        .skip(1)
        .find(|argument| !argument.starts_with('-'));
    let scene = Scene::alone();
    let broker = Mosquitto::start(&scene);
    let proxies = [
        haproxy(&scene, broker.address()),
        nginx(&scene, broker.address()),
        seawall(&scene, broker.address()),
    ];
    println!(
        "{:<44} {:>10} {:>10} {:>10}   ratio to the better",
        "", "HAProxy", "nginx", "Seawall"
    );
    for (name, version, resumed) in [
        ("admit, full TLS 1.3 P-256 [µs]", &rustls::version::TLS13, false),
        ("admit, resumed TLS 1.3 [µs]", &rustls::version::TLS13, true),
        ("admit, full TLS 1.2 P-256 [µs]", &rustls::version::TLS12, false),
        ("admit, resumed TLS 1.2 [µs]", &rustls::version::TLS12, true),
    ] {
        if wanted.as_ref().is_some_and(|words| !name.contains(words)) {
            continue;
        }
        let mut row = Vec::new();
        for proxy in &proxies {
            row.push(proxy.admit(version, resumed).await);
        }
        show(name, &row);
    }
    if wanted.is_some() {
        return;
    }
    let mut memory = Vec::new();
    for proxy in &proxies {
        memory.push(proxy.idle_memory().await);
    }
    show("idle connection, resident memory [kB]", &memory);
    let mut messages = Vec::new();
    for proxy in &proxies {
        messages.push(proxy.messages().await);
    }
    show("relayed message, in and out [µs]", &messages);
    let mut flood = Vec::new();
    for proxy in &proxies {
        flood.push(proxy.flood().await);
    }
    show("flood [µs a MB]", &flood);
    drop(proxies);
    refusals(&scene, broker.address()).await;
}

/// What a refusal and a shed cost, beside Seawall's own admission.
async fn refusals(scene: &Scene, broker: SocketAddr) {
    let settings = [("admission.rate", "0.001"), ("admission.burst", "1")];
    let refusing = seawall_with(scene, broker, "refusing", &settings);
    let admitting = seawall(scene, broker);
    let admit = admitting.admit(&rustls::version::TLS13, false).await;
    let refuse = refusing.admit(&rustls::version::TLS13, false).await;
    println!(
        "{:<44} {:>32.1}   {:.2} of its own admit",
        "refuse, full TLS 1.3 [µs]",
        refuse,
        refuse / admit
    );
    let full = seawall_with(scene, broker, "full", &[("listen.max_connections", "1")]);
    let _place = TcpStream::connect(full.address).await.unwrap();
    tokio::time::sleep(Duration::from_millis(200)).await;
    let before = full.process().processor_time();
    for _ in 0..operations() * 4 {
        // Shed while it connects or just after: both are what is measured.
        if let Ok(mut socket) = TcpStream::connect(full.address).await {
            let _ = socket.read(&mut [0; 1]).await;
        }
    }
    let shed = micros(full.process().processor_time().saturating_sub(before)) / (operations() * 4) as f64;
    println!("{:<44} {shed:>32.1}", "shed before TLS [µs]");
}

fn show(name: &str, row: &[f64]) {
    let better = row[0].min(row[1]);
    println!(
        "{name:<44} {:>10.1} {:>10.1} {:>10.1}   {:.2}",
        row[0],
        row[1],
        row[2],
        row[2] / better
    );
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

enum Running {
    Foreign(Process),
    Own(Daemon),
}

struct Proxy {
    address: SocketAddr,
    running: Running,
}

fn seawall(scene: &Scene, broker: SocketAddr) -> Proxy {
    seawall_with(scene, broker, "bench", &[])
}

fn seawall_with(scene: &Scene, broker: SocketAddr, name: &str, settings: &[(&str, &str)]) -> Proxy {
    let daemon = Daemon::start_as(name, scene, broker, settings);
    Proxy {
        address: daemon.address(),
        running: Running::Own(daemon),
    }
}

fn haproxy(scene: &Scene, broker: SocketAddr) -> Proxy {
    let pem = std::fs::read_to_string(scene.path("ecdsa.pem")).unwrap()
        + &std::fs::read_to_string(scene.path("ecdsa.key")).unwrap();
    let pem = scene.write("haproxy.pem", &pem);
    let address = free_address();
    let file = scene.write(
        "haproxy.cfg",
        &format!(
            "global\n maxconn 9000\ndefaults\n mode tcp\n timeout connect 5s\n timeout client 1h\n timeout server 1h\n\
             listen mqtt\n bind {address} ssl crt {}\n server broker {broker}\n",
            pem.display()
        ),
    );
    foreign(
        "haproxy",
        Command::new("/usr/sbin/haproxy").arg("-db").arg("-f").arg(file),
        address,
    )
}

fn nginx(scene: &Scene, broker: SocketAddr) -> Proxy {
    let address = free_address();
    let module = "/usr/lib/nginx/modules/ngx_stream_module.so";
    let file = scene.write(
        "nginx.conf",
        &format!(
            "load_module {module};\nuser root;\ndaemon off;\nmaster_process off;\npid {};\nerror_log stderr;\n\
             events {{ worker_connections 19000; }}\n\
             stream {{ server {{ listen {address} ssl; ssl_certificate {}; ssl_certificate_key {};\n\
             ssl_session_cache shared:all:10m; ssl_protocols TLSv1.2 TLSv1.3; proxy_timeout 1h; proxy_pass {broker}; }} }}\n",
            scene.path("nginx.pid").display(),
            scene.path("ecdsa.pem").display(),
            scene.path("ecdsa.key").display(),
        ),
    );
    foreign(
        "nginx",
        Command::new("/usr/sbin/nginx").arg("-c").arg(file),
        address,
    )
}

fn foreign(name: &'static str, command: &mut Command, address: SocketAddr) -> Proxy {
    let process = Process::start(name, command);
    let from = Instant::now();
    while std::net::TcpStream::connect(address).is_err() {
        assert!(
            from.elapsed() < Duration::from_secs(10),
            "{name} does not listen: {}",
            process.stderr()
        );
        std::thread::sleep(Duration::from_millis(10));
    }
    Proxy {
        address,
        running: Running::Foreign(process),
    }
}

fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

impl Proxy {
    fn process(&self) -> &Process {
        match &self.running {
            Running::Foreign(process) => process,
            Running::Own(daemon) => daemon,
        }
    }

    /// CPU of connect, handshake, CONNECT, CONNACK, close: microseconds each.
    async fn admit(&self, version: &'static SupportedProtocolVersion, resumed: bool) -> f64 {
        let each = operations() / SIDE_BY_SIDE;
        let configurations: Vec<_> = (0..SIDE_BY_SIDE)
            .map(|_| client_settings(version, resumed))
            .collect();
        let work = |rounds: usize| {
            let clients = configurations.iter().enumerate().map(|(number, settings)| {
                let (settings, address) = (Arc::clone(settings), self.address);
                tokio::spawn(async move {
                    for round in 0..rounds {
                        let mut stream = join(address, &settings, &format!("bench-{number}-{round}")).await;
                        if resumed && round > 0 {
                            let kind = stream.get_ref().1.handshake_kind();
                            assert_eq!(kind, Some(rustls::HandshakeKind::Resumed), "not resumed");
                        }
                        let _ = stream.shutdown().await;
                        let _ = stream.read(&mut [0; 64]).await;
                    }
                })
            });
            let clients: Vec<_> = clients.collect();
            async {
                for client in clients {
                    client.await.unwrap();
                }
            }
        };
        work(20).await;
        let before = self.process().processor_time();
        work(each).await;
        // What is still to be closed belongs to the operations.
        tokio::time::sleep(Duration::from_millis(200)).await;
        micros(self.process().processor_time().saturating_sub(before)) / (each * SIDE_BY_SIDE) as f64
    }

    /// Kilobytes of resident memory for each idle connection.
    async fn idle_memory(&self) -> f64 {
        let settings = client_settings(&rustls::version::TLS13, false);
        let mut open = Vec::new();
        // The allocator's first arenas are not the connections'.
        for number in 0..200 {
            open.push(join(self.address, &settings, &format!("warm-{number}")).await);
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
        let before = self.process().resident();
        for number in 0..IDLE {
            open.push(join(self.address, &settings, &format!("idle-{number}")).await);
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
        (self.process().resident() - before) as f64 / 1024.0 / IDLE as f64
    }

    /// CPU of one message published through the proxy and delivered through it: microseconds.
    async fn messages(&self) -> f64 {
        let settings = client_settings(&rustls::version::TLS13, false);
        let mut subscriber = join(self.address, &settings, "subscriber").await;
        let mut publisher = join(self.address, &settings, "publisher").await;
        subscriber
            .write_all(&packet::subscribe(4, "bench", 0))
            .await
            .unwrap();
        rig::device::read_packet(&mut subscriber).await.unwrap();
        let message = packet::publish(4, "bench", None, &[7; 64]);
        let before = self.process().processor_time();
        let rounds = operations() * 3;
        for _ in 0..rounds {
            publisher.write_all(&message).await.unwrap();
            rig::device::read_packet(&mut subscriber).await.unwrap();
        }
        micros(self.process().processor_time().saturating_sub(before)) / rounds as f64
    }

    /// CPU of one megabyte from a publisher to the broker, in messages of 64 KiB: microseconds.
    async fn flood(&self) -> f64 {
        const MEGABYTES: usize = 256;
        let settings = client_settings(&rustls::version::TLS13, false);
        let mut publisher = join(self.address, &settings, "flood").await;
        let message = packet::publish(4, "nobody", None, &vec![7; 64 * 1024]);
        let before = self.process().processor_time();
        for _ in 0..MEGABYTES * 16 {
            publisher.write_all(&message).await.unwrap();
        }
        publisher.write_all(&packet::PINGREQ).await.unwrap();
        rig::device::read_packet(&mut publisher).await.unwrap();
        micros(self.process().processor_time().saturating_sub(before)) / MEGABYTES as f64
    }
}

/// One configuration, and so one session cache, for each client: tickets are used once.
fn client_settings(version: &'static SupportedProtocolVersion, resumed: bool) -> Arc<ClientConfig> {
    let mut settings = settings_for(&[version]);
    if resumed {
        settings.resumption = rustls::client::Resumption::default();
    }
    Arc::new(settings)
}

async fn join(address: SocketAddr, settings: &Arc<ClientConfig>, client_id: &str) -> TlsStream<TcpStream> {
    let socket = TcpStream::connect(address).await.unwrap();
    socket.set_nodelay(true).unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let mut stream = TlsConnector::from(Arc::clone(settings))
        .connect(name, socket)
        .await
        .unwrap();
    stream.write_all(&Connect::v311(client_id).bytes()).await.unwrap();
    rig::device::read_packet(&mut stream).await.unwrap();
    stream
}
