//! The dashboard and the rules in a real Prometheus that scrapes a real storm.

use crate::rig::certificates::authority_with_list;
use crate::rig::crowd::tablets_and_meters;
use crate::rig::process::Process;
use crate::rig::{Daemon, Scene, Stub, eventually, http, report};
use serde_json::Value;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use time::OffsetDateTime;

/// What Grafana would put in: everything, and a rate over more than four scrapes.
const VARIABLES: [(&str, &str); 3] = [("$instance", ".*"), ("$lane", ".*"), ("$__rate_interval", "15s")];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_panel_is_empty_in_a_storm() {
    let scene = Scene::new();
    let broker = Stub::start(|mut link| async move {
        link.packet().await;
        tokio::time::sleep(Duration::from_millis(20)).await;
        link.send(&crate::rig::packet::accepted(4)).await;
        link.echo().await;
    })
    .await;
    let audit = format!("{:?}", scene.text_path("audit.jsonl"));
    authority_with_list(
        &scene,
        "fleet",
        OffsetDateTime::now_utc() + time::Duration::hours(2),
    );
    let (fleet, list) = (scene.text_path("fleet.pem"), scene.text_path("fleet.crl"));
    let (fleet, list) = (format!("{fleet:?}"), format!("[{list:?}]"));
    let daemon = Daemon::start(
        &scene,
        broker.address(),
        &[
            ("admission.rate", "10"),
            ("admission.burst", "10"),
            ("admission.max_wait", "\"1s\""),
            (
                "admission.lanes",
                r#"[{ name = "tablets", client_id = "tablet-*", reserve = 3 }]"#,
            ),
            ("handshake.full_rate", "40"),
            ("handshake.full_burst", "40"),
            ("audit.path", &audit),
            ("tls.client_auth", "\"optional\""),
            ("tls.client_ca", &fleet),
            ("tls.client_crl", &list),
        ],
    );
    let prometheus = Prometheus::start(&scene, &daemon).await;
    let _fleet = tablets_and_meters(daemon.address(), 240, Duration::from_secs(3));
    // Clients that do not like our certificate, or speak no TLS: for the handshakes that fail.
    let mut not_tls = tokio::net::TcpStream::connect(daemon.address()).await.unwrap();
    tokio::io::AsyncWriteExt::write_all(&mut not_tls, b"GET / HTTP/1.1\r\n\r\n")
        .await
        .unwrap();
    tokio::time::sleep(Duration::from_secs(20)).await;

    let dashboard = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/grafana/seawall.json");
    let dashboard: Value = serde_json::from_str(&std::fs::read_to_string(dashboard).unwrap()).unwrap();
    let mut empty = Vec::new();
    let mut panels = 0;
    for panel in dashboard["panels"].as_array().unwrap() {
        let Some(targets) = panel["targets"].as_array() else {
            continue;
        };
        let title = panel["title"].as_str().unwrap();
        let mut counts = Vec::new();
        for target in targets {
            let query = VARIABLES.iter().fold(
                target["expr"].as_str().unwrap().to_owned(),
                |query, (name, value)| query.replace(name, value),
            );
            assert!(!query.contains('$'), "a variable that nobody sets in {query}");
            let series = prometheus.series(&query).await;
            if series == 0 {
                empty.push(format!("{title}: {query}"));
            }
            counts.push(series.to_string());
        }
        panels += 1;
        report(&format!("{title}: {} series", counts.join(" + ")));
    }
    assert!(panels >= 25, "only {panels} panels");
    assert!(empty.is_empty(), "{empty:#?}");

    for variable in dashboard["templating"]["list"].as_array().unwrap() {
        let Some(query) = variable["definition"].as_str() else {
            continue;
        };
        let (metric, label) = query
            .trim_start_matches("label_values(")
            .trim_end_matches(')')
            .rsplit_once(", ")
            .unwrap();
        let values = format!("count by ({label}) ({})", metric.replace("$instance", ".*"));
        assert!(prometheus.series(&values).await > 0, "no values for {query}");
    }
    prometheus.rules_are_well().await;
}

struct Prometheus {
    process: Process,
    address: SocketAddr,
}

impl Prometheus {
    /// Debian's, on a free port, with the rules and a scrape every second.
    async fn start(scene: &Scene, daemon: &Daemon) -> Self {
        let rules = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/prometheus/rules.yml");
        let file = scene.write(
            "prometheus.yml",
            &format!(
                "global: {{ scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s }}\n\
                 rule_files: [\"{}\"]\n\
                 scrape_configs:\n  - job_name: seawall\n    static_configs: [{{ targets: [\"{}\"] }}]\n",
                rules.display(),
                daemon.admin()
            ),
        );
        let address = std::net::TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap();
        let process = Process::start(
            "prometheus",
            Command::new("prometheus")
                .arg(format!("--config.file={}", file.display()))
                .arg(format!("--storage.tsdb.path={}", scene.text_path("prometheus")))
                .arg(format!("--web.listen-address={address}")),
        );
        eventually("Prometheus listens", || {
            std::net::TcpStream::connect(address).is_ok()
        })
        .await;
        while http::get(address, "/-/ready").await.status != 200 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let prometheus = Self { process, address };
        let from = std::time::Instant::now();
        while prometheus.series("seawall_build_info").await == 0 {
            assert!(
                from.elapsed() < Duration::from_secs(15),
                "nothing is scraped: {}",
                prometheus.process.stderr()
            );
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        prometheus
    }

    async fn api(&self, path: &str) -> Value {
        let answer = http::get(self.address, path).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        serde_json::from_str::<Value>(&answer.body).unwrap()["data"].take()
    }

    /// How many series a query has that are numbers.
    async fn series(&self, query: &str) -> usize {
        let escaped = query
            .bytes()
            .fold(String::new(), |text, byte| format!("{text}%{byte:02X}"));
        let data = self.api(&format!("/api/v1/query?query={escaped}")).await;
        let series = data["result"].as_array().unwrap();
        series
            .iter()
            .filter(|one| one["value"][1].as_str().unwrap() != "NaN")
            .count()
    }

    async fn rules_are_well(&self) {
        let data = self.api("/api/v1/rules").await;
        let groups = data["groups"].as_array().unwrap().iter();
        let rules: Vec<&Value> = groups
            .flat_map(|group| group["rules"].as_array().unwrap())
            .collect();
        assert!(rules.len() >= 29, "only {} rules", rules.len());
        for rule in rules {
            assert_eq!(rule["health"], "ok", "{rule}");
        }
        assert!(self.series("seawall:refused_for_room:rate1m > 0").await > 0);
    }
}
