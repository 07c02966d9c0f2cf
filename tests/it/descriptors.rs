//! Too few descriptors for all who come.

use crate::rig::daemon::{binary, configuration};
use crate::rig::packet::accepted;
use crate::rig::process::Process;
use crate::rig::{Connect, Daemon, Device, Scene, Stub, eventually, report};
use std::process::Command;
use std::time::{Duration, Instant};
use tokio::net::TcpStream;

#[tokio::test]
async fn more_clients_than_descriptors() {
    const LIMIT: u32 = 128;
    const CLIENTS: usize = 300;
    let scene = Scene::alone();
    let broker = Stub::content().await;
    let file = scene.write("seawall.toml", &configuration(&scene, broker.address(), &[]));
    let daemon = Daemon::launch(
        Command::new("sh")
            .arg("-c")
            .arg(format!("ulimit -n {LIMIT}; exec \"$0\" run --config \"$1\""))
            .arg(binary())
            .arg(file),
    );
    let baseline = daemon.descriptors();
    let mut sessions = Vec::new();
    for number in 0..10 {
        sessions.push(Device::join(&daemon, Connect::v311(&format!("early-{number}"))).await);
    }

    let mut crowd = Vec::new();
    for _ in 0..CLIENTS {
        // Who is shed may be reset before it knows that it was connected.
        crowd.extend(TcpStream::connect(daemon.address()).await);
    }
    let (from, used_before) = (Instant::now(), daemon.processor_time());
    tokio::time::sleep(Duration::from_secs(3)).await;
    let share =
        daemon.processor_time().saturating_sub(used_before).as_secs_f64() / from.elapsed().as_secs_f64();
    report(&format!(
        "{:.1} % of a core with {CLIENTS} clients on {LIMIT} descriptors",
        share * 100.0
    ));
    assert!(share < 0.2, "{:.0} % of a core", share * 100.0);

    let metrics = daemon.metrics().await;
    assert!(metrics.sum("seawall_shed_total", &[]) > 0.0, "{metrics}");
    // A steady client that was there before is none the worse.
    for device in &mut sessions {
        device.send(&crate::rig::packet::PINGREQ).await;
    }
    for index in 0..sessions.len() {
        let visit = broker.visit(index).await;
        let connect = Connect::v311("early-0").bytes().len();
        assert!(
            visit
                .received_at_least(connect + 2)
                .await
                .ends_with(&crate::rig::packet::PINGREQ)
        );
    }

    drop(crowd);
    daemon.descriptors_back_to(baseline + 2 * sessions.len()).await;
    for number in 0..20 {
        let _session = Device::join(&daemon, Connect::v311(&format!("after-{number}"))).await;
    }
    drop(sessions);
    daemon.descriptors_back_to(baseline).await;
}

#[tokio::test]
async fn sessions_up_to_the_last_descriptor() {
    let scene = Scene::new();
    let broker = Stub::content().await;
    let file = scene.write("seawall.toml", &configuration(&scene, broker.address(), &[]));
    let daemon = Daemon::launch(
        Command::new("sh")
            .args(["-c", "ulimit -n 96; exec \"$0\" run --config \"$1\""])
            .arg(binary())
            .arg(file),
    );
    let baseline = daemon.descriptors();
    let mut sessions = Vec::new();
    for number in 0..120 {
        let id = format!("device-{number}");
        let joining = async {
            let mut device = Device::try_dial(daemon.address()).await.ok()?;
            device.try_send(&Connect::v311(&id).bytes()).await.ok()?;
            let connack = device.try_packet().await.ok()?;
            (connack[3] == 0).then_some(device)
        };
        let joined = tokio::time::timeout(Duration::from_secs(5), joining).await;
        sessions.extend(joined.expect("a client was left without an answer"));
    }
    assert!(
        (10..48).contains(&sessions.len()),
        "{} sessions on 96 descriptors",
        sessions.len()
    );
    daemon.metrics().await;
    drop(sessions);
    daemon.descriptors_back_to(baseline).await;
    let _session = Device::join(&daemon, Connect::v311("after")).await;
    eventually("nothing but readiness", || daemon.stderr().lines().count() < 50).await;
}

/// Under whatever limit: it says that it can't, or it serves.
#[tokio::test]
async fn a_limit_that_no_connection_fits_under_is_said_at_the_start() {
    let scene = Scene::new();
    let broker = Stub::content().await;
    let file = scene.write("seawall.toml", &configuration(&scene, broker.address(), &[]));
    let (mut refused, mut served) = (0, 0);
    for limit in [4, 8, 12, 16, 18, 20, 22, 24, 26, 28, 32, 40] {
        let mut command = Command::new("sh");
        command
            .arg("-c")
            .arg(format!("ulimit -n {limit}; exec \"$0\" run --config \"$1\""))
            .arg(binary())
            .arg(&file);
        let mut process = Process::start("seawall", command.env_clear());
        let ready = process.wait_until("`ready` or an end", |process| {
            process.stdout().lines().any(|line| line == "ready").then_some(())
        });
        let Err(status) = ready else {
            let address = process.stdout().lines().find_map(|line| {
                line.strip_prefix("listening ")
                    .and_then(|address| address.parse().ok())
            });
            let mut device = Device::try_dial(address.unwrap()).await.unwrap();
            device.send(&Connect::v311("only").bytes()).await;
            device.expect_packet(&accepted(4)).await;
            served += 1;
            continue;
        };
        if limit < 8 {
            // Not even libraries can be loaded.
            continue;
        }
        assert_eq!(status.code(), Some(71), "{limit}");
        let words = ["the descriptor limit is", "Too many open files"];
        eventually("it says why", || {
            words.iter().any(|words| process.stderr().contains(words))
        })
        .await;
        refused += 1;
    }
    assert!(refused >= 4 && served >= 2, "{refused} refused, {served} served");
}

#[tokio::test]
async fn max_connections_sheds_the_rest() {
    let scene = Scene::new();
    let broker = Stub::content().await;
    let daemon = Daemon::start(&scene, broker.address(), &[("listen.max_connections", "5")]);
    let mut sessions = Vec::new();
    for _ in 0..5 {
        sessions.push(Device::join(&daemon, Connect::v311("early")).await);
    }
    for _ in 0..3 {
        assert!(
            Device::try_dial(daemon.address()).await.is_err(),
            "a sixth client got TLS"
        );
    }
    daemon
        .counts("seawall_shed_total", &[("reason", "max-connections")], 3.0)
        .await;
    sessions.pop().unwrap().close().await;
    daemon.counts("seawall_connections_open", &[], 4.0).await;
    let _session = Device::join(&daemon, Connect::v311("late")).await;
}
