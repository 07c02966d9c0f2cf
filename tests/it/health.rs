//! `seawall health`, as the health check of a container runs it.

use std::net::SocketAddr;
use std::process::Command;

use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;

use crate::rig::daemon::binary;
use crate::rig::process::{Finished, run};
use crate::rig::stub::nobody;
use crate::rig::{Connect, Daemon, Device, PATIENCE, Scene, Stub};

fn ask(url: &str) -> Finished {
    let mut command = Command::new(binary());
    command.args(["health", "--timeout", "5s", url]);
    run("seawall health", &mut command, PATIENCE)
}

#[tokio::test]
async fn a_daemon_that_lives_and_one_without_a_broker() {
    let scene = Scene::new();
    let broker = Stub::content().await;
    let well = Daemon::start_as("well", &scene, broker.address(), &[]);
    ask(&format!("http://{}/healthz", well.admin())).expect(0, &[]);
    ask(&format!("http://{}/readyz", well.admin())).expect(0, &[]);
    ask(&format!("http://{}/nothing-here", well.admin())).expect(1, &["404", "no such page"]);

    let alone = Daemon::start_as("alone", &scene, nobody().await, &[]);
    let mut device = Device::dial(&alone).await;
    device.send(&Connect::v311("alone").bytes()).await;
    assert_eq!(device.packet().await[3], 3);
    ask(&format!("http://{}/healthz", alone.admin())).expect(0, &[]);
    ask(&format!("http://{}/readyz", alone.admin()))
        .expect(1, &["not healthy: http://", "/readyz: 503", "no broker"]);
}

#[tokio::test]
async fn a_guarded_admin_address_is_asked_over_tls_and_without_a_token() {
    let scene = Scene::new();
    let broker = Stub::content().await;
    let values = ["ecdsa.pem", "ecdsa.key"].map(|name| format!("{:?}", scene.text_path(name)));
    let daemon = Daemon::start(
        &scene,
        broker.address(),
        &[
            ("admin.tls.certificate", values[0].as_str()),
            ("admin.tls.private_key", values[1].as_str()),
        ],
    );
    ask(&format!("https://{}/healthz", daemon.admin())).expect(0, &[]);
    ask(&format!("http://{}/healthz", daemon.admin())).expect(1, &["not healthy"]);
}

#[tokio::test]
async fn whatever_else_is_there_is_not_healthy() {
    let gone = nobody().await;
    ask(&format!("http://{gone}/healthz")).expect(1, &["refused"]);

    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = silent.local_addr().unwrap();
    let mut command = Command::new(binary());
    command.args([
        "health",
        "--timeout",
        "200ms",
        &format!("http://{address}/healthz"),
    ]);
    run("seawall health", &mut command, PATIENCE).expect(1, &["no answer within 0.2 s"]);

    for (answer, words) in [
        ("SSH-2.0-OpenSSH_9.2\r\n", "no HTTP"),
        ("", "no HTTP"),
        (
            "HTTP/1.1 500 Oh\r\ncontent-length: 12\r\n\r\nfirst\nsecond",
            "500 Internal Server Error: first",
        ),
        (
            "HTTP/1.1 301 Moved\r\nlocation: /\r\ncontent-length: 0\r\n\r\n",
            "301",
        ),
    ] {
        let address = answers(answer).await;
        // The peer runs on this thread, which must not wait for the command.
        let asked = tokio::task::spawn_blocking(move || ask(&format!("http://{address}/healthz")));
        asked.await.unwrap().expect(1, &[words]);
    }

    ask("127.0.0.1:9883").expect(64, &["http://127.0.0.1:9883/healthz"]);
}

/// Answers one connection with these bytes, and closes.
async fn answers(bytes: &'static str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = [0; 1024];
        let _ = tokio::io::AsyncReadExt::read(&mut stream, &mut request).await;
        stream.write_all(bytes.as_bytes()).await.unwrap();
    });
    address
}
