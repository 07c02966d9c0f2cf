//! What the storm's generator is good for: full TLS 1.3 attempts a second of one core, against a target on the other core
//! that shakes hands, reads the CONNECT and refuses everybody.
//!
//! `cargo bench --bench storm`. `SEAWALL_BENCH_SECONDS` is how long it storms, 10 by default.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::disallowed_methods,
    clippy::disallowed_types,
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
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rig::Scene;
use rig::certificates::certificates;
use rig::daemon::binary;
use rig::process::run;
use rustix::thread::{CpuSet, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::TlsAcceptor;

/// Enough that somebody always knocks, few enough that nobody waits for long.
const DEVICES: &str = "1000";
const RETRY: &str = "100ms";
/// MQTT 3.1.1: server unavailable.
const BUSY: [u8; 4] = [0x20, 2, 0, 3];
/// The aim of issue and documentation.
const AIM: f64 = 3000.0;

fn main() {
    // `cargo test --benches` runs this as well; only `cargo bench` asks for figures.
    if !std::env::args().any(|argument| argument == "--bench") {
        return;
    }
    let seconds = std::env::var("SEAWALL_BENCH_SECONDS").map_or(10, |seconds| seconds.parse().unwrap());
    let scene = Scene::alone();
    let target = Target::start();
    for tls in ["1.3", "1.2"] {
        let before = target.refused();
        let report = storm(&scene, target.address, tls, seconds);
        let elapsed = number(&report, "/generator/elapsed_s");
        let cpu = number(&report, "/generator/effort/cpu_s");
        let full = number(&report, "/storm/handshakes/full");
        let (rate, capable) = (full / elapsed, full / cpu);
        println!(
            "TLS {tls}: {rate:.0} full attempts a second, {capable:.0} for each second of its own processor time ({:.0} us \
             each); it used {:.0} % of its core, the target {:.0} % of the other; the target refused {}",
            1e6 / capable,
            100.0 * cpu / elapsed,
            100.0 * target.busy_since_last(elapsed),
            target.refused() - before,
        );
        if tls == "1.3" && capable < AIM {
            println!("below the aim of {AIM} for each core");
        }
    }
}

fn storm(scene: &Scene, target: SocketAddr, tls: &str, seconds: u64) -> Value {
    let json = scene.text_path("storm.json");
    let mut command = Command::new("taskset");
    command
        .args(["-c", "0"])
        .arg(binary())
        .args(["storm", "--target", &format!("localhost:{}", target.port())])
        .args([
            "--ca",
            &scene.text_path("ca.pem"),
            "--tls",
            tls,
            "--no-resumption",
        ])
        .args([
            "--devices",
            DEVICES,
            "--pattern",
            "cold",
            "--retry",
            RETRY,
            "--patience",
            "60s",
        ])
        .args([
            "--protocol",
            "3.1.1",
            "--pairs",
            "0",
            "--calm",
            "0s",
            "--threads",
            "1",
        ])
        .args(["--limit", &format!("{seconds}s"), "--json", &json]);
    let finished = run("seawall", &mut command, Duration::from_secs(seconds + 30));
    assert_eq!(finished.code, Some(1), "{}{}", finished.stdout, finished.stderr);
    serde_json::from_str(&std::fs::read_to_string(json).unwrap()).unwrap()
}

fn number(report: &Value, path: &str) -> f64 {
    report.pointer(path).and_then(Value::as_f64).unwrap()
}

/// A server on a core of its own that lets nobody in.
struct Target {
    address: SocketAddr,
    counts: Arc<Counts>,
}

#[derive(Default)]
struct Counts {
    refused: AtomicU64,
    cpu_us: AtomicU64,
    cpu_before_us: AtomicU64,
}

impl Target {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        // The standard library's backlog of 128 would be the bottleneck.
        rustix::net::listen(&listener, 8192).unwrap();
        let address = listener.local_addr().unwrap();
        let counts = Arc::new(Counts::default());
        let counting = Arc::clone(&counts);
        std::thread::spawn(move || {
            let mut second = CpuSet::new();
            second.set(1);
            // On a machine with one core both share it.
            let _ = sched_setaffinity(None, &second);
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            let local = tokio::task::LocalSet::new();
            runtime.block_on(local.run_until(serve(listener, counting)));
        });
        Self { address, counts }
    }

    fn refused(&self) -> u64 {
        self.counts.refused.load(Ordering::Relaxed)
    }

    /// Share of `elapsed` seconds for which it worked since the last call.
    fn busy_since_last(&self, elapsed: f64) -> f64 {
        let now = self.counts.cpu_us.load(Ordering::Relaxed);
        let before = self.counts.cpu_before_us.swap(now, Ordering::Relaxed);
        (now - before) as f64 / 1e6 / elapsed
    }
}

async fn serve(listener: TcpListener, counts: Arc<Counts>) {
    let listener = tokio::net::TcpListener::from_std(listener).unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(settings()));
    loop {
        let Ok((client, _)) = listener.accept().await else {
            continue;
        };
        let (acceptor, counts) = (acceptor.clone(), Arc::clone(&counts));
        tokio::task::spawn_local(async move {
            client.set_nodelay(true)?;
            let mut client = acceptor.accept(client).await?;
            let mut connect = [0; 512];
            if client.read(&mut connect).await? > 0 {
                client.write_all(&BUSY).await?;
                client.shutdown().await?;
                counts.refused.fetch_add(1, Ordering::Relaxed);
            }
            let time = clock_gettime(ClockId::ThreadCPUTime);
            let microseconds = time.tv_sec.unsigned_abs() * 1_000_000 + time.tv_nsec.unsigned_abs() / 1000;
            counts.cpu_us.store(microseconds, Ordering::Relaxed);
            std::io::Result::Ok(())
        });
    }
}

fn settings() -> rustls::ServerConfig {
    let own = &certificates().ecdsa;
    let chain = vec![CertificateDer::from_pem_slice(own.chain.as_bytes()).unwrap()];
    let key = PrivateKeyDer::from_pem_slice(own.key.as_bytes()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut settings = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    settings.send_tls13_tickets = 0;
    settings.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
    settings
}
