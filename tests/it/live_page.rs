//! The live page in a browser, with a storm going on.

use crate::rig::crowd::tablets_and_meters;
use crate::rig::process::Process;
use crate::rig::{Connect, Daemon, Device, Scene, Stub, http, report};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// From the first device of the storm to the page that shows it.
const SHOWN_WITHIN: Duration = Duration::from_secs(2);
const DEVICES: usize = 200;
/// The whole visit with all its checks, on a busy machine.
const VISIT: Duration = Duration::from_secs(90);

const STORMY: [(&str, &str); 4] = [
    ("admission.rate", "10"),
    ("admission.burst", "10"),
    ("admission.max_wait", "\"1s\""),
    (
        "admission.lanes",
        r#"[{ name = "tablets", client_id = "tablet-*", reserve = 3 }]"#,
    ),
];

/// Pictures go to `SEAWALL_PICTURES`, where that is set.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_page_shows_a_storm_within_two_seconds_and_can_be_read_by_everybody() {
    let scene = Scene::alone();
    let broker = Stub::start(|mut link| async move {
        link.packet().await;
        tokio::time::sleep(Duration::from_millis(30)).await;
        link.send(&crate::rig::packet::accepted(4)).await;
        link.listen().await;
    })
    .await;
    let daemon = Daemon::start(&scene, broker.address(), &STORMY);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers/live_page.js");
    let folder = scene.path("browser");
    std::fs::create_dir(&folder).unwrap();
    let mut visit = Command::new("node");
    visit
        .arg(script)
        .arg(chromium())
        .arg(format!("http://{}/", daemon.admin()))
        .arg(&folder);
    if std::env::var_os("NODE_PATH").is_none() {
        let modules = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/.tools/node/node_modules");
        visit.env("NODE_PATH", modules);
    }
    let mut visit = Process::start("node", &mut visit);
    wait_for_line(&mut visit, "quiet");
    let from = Instant::now();
    let _fleet = tablets_and_meters(daemon.address(), DEVICES, Duration::from_secs(4));
    wait_for_line(&mut visit, "storm");
    let shown = from.elapsed();
    let status = visit.wait(VISIT);
    report(&format!("the page shows the storm after {shown:.1?}"));
    let words = format!("{}{}", visit.stdout(), visit.stderr());
    report(&words.trim().replace('\n', "; "));
    if let Some(pictures) = std::env::var_os("SEAWALL_PICTURES").map(PathBuf::from) {
        for name in ["page-light.png", "page-dark.png", "page-telephone.png"] {
            std::fs::copy(folder.join(name), pictures.join(name)).unwrap();
        }
    }
    assert!(status.success(), "{words}");
    assert_eq!(words.matches(": ok").count(), 7, "{words}");
    assert!(shown <= SHOWN_WITHIN, "shown after {shown:?}");
    let estimate = words.lines().find_map(|line| line.strip_prefix("estimate: "));
    let estimate: f64 = estimate.unwrap().replace(',', "").parse().unwrap();
    // Ten a second come in meanwhile, and a burst of ten before.
    assert!(
        (0.4 * DEVICES as f64..=1.05 * DEVICES as f64).contains(&estimate),
        "{estimate} outside"
    );
}

/// The events behind the page, read by hand.
#[tokio::test]
async fn events_come_every_second_to_a_bounded_number_of_watchers() {
    let scene = Scene::new();
    let broker = Stub::content().await;
    let daemon = Daemon::start(&scene, broker.address(), &[]);
    let _session = Device::join(&daemon, Connect::v311("one")).await;
    let mut watchers = Vec::new();
    for _ in 0..16 {
        watchers.push(watch(daemon.admin()).await);
    }
    let refused = http::get(daemon.admin(), "/events").await;
    assert_eq!(refused.status, 503, "the seventeenth");
    assert!(
        refused.head.to_ascii_lowercase().contains("retry-after: 5"),
        "{}",
        refused.head
    );
    assert_eq!(daemon.metrics().await.sum("seawall_connections_total", &[]), 1.0);
    let watcher = &mut watchers[0];
    let mut text = String::new();
    while text.matches("event: now\ndata: ").count() < 3 {
        let mut piece = [0; 8192];
        let count = watcher.read(&mut piece).await.unwrap();
        assert!(count > 0, "the events end: {text}");
        text.push_str(&String::from_utf8_lossy(&piece[..count]));
    }
    assert!(
        text.to_ascii_lowercase()
            .contains("content-type: text/event-stream"),
        "{text}"
    );
    assert!(text.find("event: history").unwrap() < text.find("event: now").unwrap());
    let data = text.split("event: now\ndata: ").last().unwrap().lines().next();
    let now: serde_json::Value = serde_json::from_str(data.unwrap()).unwrap();
    assert_eq!(now["phases"]["relaying"], 1);
    assert_eq!(now["rate"]["cause"], "fixed");
    assert_eq!(now["lanes"][0]["name"], "default");
    assert_eq!(now["brokers"][0]["up"], true);

    // Who has left makes room.
    drop(watchers);
    let from = Instant::now();
    loop {
        let mut again = watch(daemon.admin()).await;
        let mut head = [0; 12];
        again.read_exact(&mut head).await.unwrap();
        if &head == b"HTTP/1.1 200" {
            break;
        }
        assert!(from.elapsed() < Duration::from_secs(10), "no place becomes free");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn watch(admin: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(admin).await.unwrap();
    let request = format!("GET /events HTTP/1.1\r\nhost: {admin}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    stream
}

fn wait_for_line(visit: &mut Process, word: &str) {
    let found = visit.wait_until(word, |visit| {
        visit.stdout().lines().any(|line| line == word).then_some(())
    });
    if let Err(status) = found {
        panic!(
            "the visit ended with {status} before it said {word:?}: {}",
            visit.stderr()
        );
    }
}

/// `SEAWALL_CHROMIUM`, or what Debian calls it.
fn chromium() -> PathBuf {
    if let Some(named) = std::env::var_os("SEAWALL_CHROMIUM") {
        return named.into();
    }
    let path = std::env::var_os("PATH").unwrap();
    let mut found = std::env::split_paths(&path)
        .flat_map(|folder| ["chromium-headless-shell", "chromium"].map(|name| folder.join(name)));
    found
        .find(|file| file.exists())
        .expect("no Chromium: tests/run installs it")
}
