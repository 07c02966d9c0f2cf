//! Seawall itself, in a process of its own.

use super::http::{self, Metrics};
use super::process::Process;
use super::{PATIENCE, Scene};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::SocketAddr;
use std::ops::Deref;
use std::path::PathBuf;
use std::process::{Command, ExitStatus};
use std::time::Duration;

/// A running Seawall.
pub struct Daemon {
    process: Process,
    address: SocketAddr,
    admin: SocketAddr,
}

/// The daemon under test.
pub fn binary() -> PathBuf {
    let path = std::env::var_os("SEAWALL_BIN").unwrap_or_else(|| env!("CARGO_BIN_EXE_seawall").into());
    std::fs::canonicalize(&path).unwrap_or_else(|error| panic!("SEAWALL_BIN {}: {error}", path.display()))
}

/// A configuration that refuses nobody: `settings` (key path, TOML value) goes over it.
pub fn configuration(scene: &Scene, upstream: SocketAddr, settings: &[(&str, &str)]) -> String {
    let mut all: BTreeMap<&str, String> = BTreeMap::from([
        ("listen.addresses", r#"["127.0.0.1:0"]"#.to_owned()),
        ("admin.address", r#""127.0.0.1:0""#.to_owned()),
        ("tls.certificate", format!("{:?}", scene.text_path("ecdsa.pem"))),
        ("tls.private_key", format!("{:?}", scene.text_path("ecdsa.key"))),
        ("upstream.servers", format!("[\"{upstream}\"]")),
        ("admission.rate", "100000".to_owned()),
        ("admission.burst", "100000".to_owned()),
        ("admission.max_in_flight", "100000".to_owned()),
        // Its number differs each time; the scenarios about it turn it on.
        ("refusal.retry_after", "false".to_owned()),
    ]);
    for (key, value) in settings {
        all.insert(key, (*value).to_owned());
    }
    all.iter().fold(String::new(), |mut text, (key, value)| {
        writeln!(text, "{key} = {value}").unwrap();
        text
    })
}

impl Daemon {
    /// In front of `upstream`, ready for clients.
    pub fn start(scene: &Scene, upstream: SocketAddr, settings: &[(&str, &str)]) -> Self {
        Self::start_as("seawall", scene, upstream, settings)
    }

    /// The same with a configuration file of its own, where several daemons share a scene.
    pub fn start_as(name: &str, scene: &Scene, upstream: SocketAddr, settings: &[(&str, &str)]) -> Self {
        let file = scene.write(&format!("{name}.toml"), &configuration(scene, upstream, settings));
        Self::launch(Command::new(binary()).arg("run").arg("--config").arg(file))
    }

    /// From a command that was made by hand.
    pub fn launch(command: &mut Command) -> Self {
        let mut process = Process::start("seawall", command.env_clear());
        let ready = process.wait_until("`ready` on stdout", |process| {
            process.stdout().lines().any(|line| line == "ready").then_some(())
        });
        if let Err(status) = ready {
            panic!("seawall ended before it was ready, {status}");
        }
        let stdout = process.stdout();
        let address = |word: &str| {
            let line = stdout.lines().find_map(|line| line.strip_prefix(word));
            line.and_then(|rest| rest.trim().parse().ok())
                .unwrap_or_else(|| panic!("no line `{word} ADDRESS` in {stdout:?}"))
        };
        let (address, admin) = (address("listening"), address("admin"));
        Self {
            process,
            address,
            admin,
        }
    }

    /// Where devices connect.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn port(&self) -> String {
        self.address.port().to_string()
    }

    /// Where operators look.
    pub fn admin(&self) -> SocketAddr {
        self.admin
    }

    pub async fn metrics(&self) -> Metrics {
        let answer = http::get(self.admin, "/metrics").await;
        assert_eq!(answer.status, 200, "/metrics: {}", answer.body);
        Metrics::parse(&answer.body)
    }

    /// Waits until the series with these labels add up to `value`: what is counted at a connection's end is counted a
    /// moment after the client has seen it.
    #[allow(clippy::float_cmp, reason = "what is counted is exact")]
    pub async fn counts(&self, name: &str, labels: &[(&str, &str)], value: f64) -> Metrics {
        self.metrics_until(&format!("{value} of {name} {labels:?}"), |metrics| {
            metrics.sum(name, labels) == value
        })
        .await
    }

    /// Looks at the metrics until `condition` holds for them.
    pub async fn metrics_until(&self, what: &str, condition: impl Fn(&Metrics) -> bool) -> Metrics {
        let from = std::time::Instant::now();
        loop {
            let metrics = self.metrics().await;
            if condition(&metrics) {
                return metrics;
            }
            assert!(
                from.elapsed() < PATIENCE,
                "{what}: not within {PATIENCE:?}; metrics:\n{metrics}"
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Waits until no more descriptors are open than `baseline`.
    pub async fn descriptors_back_to(&self, baseline: usize) {
        let from = std::time::Instant::now();
        while self.descriptors() > baseline {
            assert!(
                from.elapsed() < PATIENCE,
                "{} descriptors open, {baseline} before the clients came; metrics:\n{}",
                self.descriptors(),
                self.metrics().await
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    pub fn wait_for_end(mut self, patience: Duration) -> ExitStatus {
        self.process.wait(patience)
    }
}

impl Deref for Daemon {
    type Target = Process;

    fn deref(&self) -> &Process {
        &self.process
    }
}
