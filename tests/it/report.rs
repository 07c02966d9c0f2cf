//! `seawall report` on logs that a real daemon wrote: its figures against what the devices counted, and what a kill in the
//! middle of a storm leaves.

use crate::rig::daemon::binary;
use crate::rig::process::{Finished, run};
use crate::rig::{Connect, Daemon, Device, PATIENCE, Scene, Stub, report};
use rustix::process::Signal;
use serde_json::Value;
use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};
use tokio::task::JoinSet;
use tokio::time::sleep;

/// On the devices' side the CONNACK comes a moment after it was passed on.
const TOLERANCE: f64 = 0.05;

/// All files of the log, its head among them, as a pattern of the shell names them.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    files
}

fn seawall_report(files: &[PathBuf], flags: &[&str]) -> Finished {
    let mut command = Command::new(binary());
    command.arg("report").args(files).args(flags).env_clear();
    run("seawall report", &mut command, PATIENCE)
}

fn figures(files: &[PathBuf]) -> Value {
    let finished = seawall_report(files, &["--json"]);
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    serde_json::from_str(&finished.stdout).unwrap()
}

/// The report's 50, 90, 99 and 100 % are those of the devices: `moments` in Unix seconds, in ascending order.
fn assert_back_at(storm: &Value, moments: &[f64]) {
    let started = storm["started"].as_f64().unwrap();
    for share in storm["back_after"].as_array().unwrap() {
        let hundredths = share["hundredths"].as_u64().unwrap() as usize;
        let theirs = moments[(moments.len() * hundredths).div_ceil(100) - 1];
        let ours = started + share["seconds"].as_f64().unwrap();
        report(&format!(
            "{hundredths} % back: {:.1} ms apart",
            (theirs - ours) * 1e3
        ));
        assert!(
            (theirs - ours).abs() < TOLERANCE,
            "{hundredths} %: {ours} and {theirs}"
        );
    }
}

/// A folder that the audit log has for itself, and `audit.path` in it.
fn log_folder(scene: &Scene) -> (PathBuf, String) {
    let folder = scene.path("log");
    std::fs::create_dir(&folder).unwrap();
    let path = format!("{:?}", scene.text_path("log/audit.jsonl"));
    (folder, path)
}

/// What a device counts. Moments in Unix seconds.
#[derive(Default)]
struct Counted {
    attempts: u64,
    codes: BTreeMap<u8, u64>,
    back: f64,
}

/// Comes at once and then each second after an answer, until it is in.
async fn device(daemon: Arc<Daemon>, number: usize) -> (Counted, Device) {
    let level = if number.is_multiple_of(2) { 4 } else { 5 };
    let id = format!("sensor-{number:03}");
    let mut counted = Counted::default();
    loop {
        counted.attempts += 1;
        let mut device = Device::dial(&daemon).await;
        device.send(&Connect::level(level, &id).bytes()).await;
        let code = device.packet().await[3];
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        if code == 0 {
            counted.back = now.as_secs_f64();
            return (counted, device);
        }
        *counted.codes.entry(code).or_default() += 1;
        drop(device);
        sleep(Duration::from_secs(1)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_figures_are_those_that_the_devices_counted() {
    const DEVICES: usize = 60;
    let scene = Scene::alone();
    let broker = Stub::content().await;
    let (folder, path) = log_folder(&scene);
    let settings = [
        ("audit.path", path.as_str()),
        ("admission.rate", "12"),
        ("admission.burst", "5"),
    ];
    let daemon = Arc::new(Daemon::start(&scene, broker.address(), &settings));
    let mut fleet = JoinSet::new();
    for number in 0..DEVICES {
        fleet.spawn(device(Arc::clone(&daemon), number));
    }
    let back = fleet.join_all().await;
    daemon.signal(Signal::TERM);
    let counted: Vec<Counted> = back.into_iter().map(|(counted, _)| counted).collect();
    Arc::into_inner(daemon).unwrap().wait_for_end(PATIENCE);

    let files = files(&folder);
    let found = figures(&files);
    let storm = &found["proxy"]["storms"][0];
    assert_eq!(found["proxy"]["storms"].as_array().unwrap().len(), 1);
    let attempts: u64 = counted.iter().map(|device| device.attempts).sum();
    assert_eq!(storm["attempts"], attempts);
    assert_eq!(
        (&storm["connected"], &storm["clients"]),
        (&DEVICES.into(), &DEVICES.into())
    );
    let with = |code| {
        counted
            .iter()
            .filter_map(|device| device.codes.get(&code))
            .sum::<u64>()
    };
    assert_eq!(storm["refused"]["rate"], with(3) + with(0x89));
    let rows = storm["by_protocol"].as_array().unwrap();
    for (protocol, code) in [("3.1.1", 3), ("5", 0x89)] {
        let row = rows.iter().find(|row| row["name"] == protocol).unwrap();
        assert_eq!(row["refused"], with(code), "{protocol}");
    }

    let mut moments: Vec<f64> = counted.iter().map(|device| device.back).collect();
    moments.sort_by(f64::total_cmp);
    assert_back_at(storm, &moments);

    let page = scene.path("report.html");
    let finished = seawall_report(&files, &["--html", page.to_str().unwrap()]);
    assert!(finished.stdout.contains("the chain holds"), "{}", finished.stdout);
    let html = std::fs::read_to_string(page).unwrap();
    assert!(html.contains("<svg") && !html.contains("<script"), "{html}");
}

/// The same with the simulator's fleet, which counts and times by itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_figures_are_those_of_the_simulator() {
    const DEVICES: usize = 150;
    let scene = Scene::alone();
    let broker = Stub::content().await;
    let (folder, path) = log_folder(&scene);
    let settings = [
        ("audit.path", path.as_str()),
        ("admission.rate", "30"),
        ("admission.burst", "10"),
        ("admission.max_wait", "\"2s\""),
        ("admission.max_held", "20"),
    ];
    let daemon = Daemon::start(&scene, broker.address(), &settings);
    let mut storm = Command::new(binary());
    storm
        .env_clear()
        .args(["storm", "--target", &format!("localhost:{}", daemon.port())])
        .args([
            "--ca",
            &scene.text_path("ca.pem"),
            "--json",
            &scene.text_path("storm.json"),
        ])
        .args([
            "--devices",
            &DEVICES.to_string(),
            "--pattern",
            "cold",
            "--spread",
            "0s",
        ])
        // Patient, so that nobody leaves while an answer is on its way.
        .args([
            "--patience",
            "30s",
            "--retry",
            "1s",
            "--pairs",
            "0",
            "--limit",
            "60s",
        ]);
    let ran = tokio::task::spawn_blocking(move || run("seawall storm", &mut storm, 4 * PATIENCE));
    let ran = ran.await.unwrap();
    assert_eq!(ran.code, Some(0), "{}{}", ran.stdout, ran.stderr);
    daemon.signal(Signal::TERM);
    daemon.wait_for_end(PATIENCE);

    let text = std::fs::read_to_string(scene.path("storm.json")).unwrap();
    let devices: Value = serde_json::from_str(&text).unwrap();
    let counted = &devices["storm"];
    let found = figures(&files(&folder));
    let storm = &found["proxy"]["storms"][0];
    assert_eq!(storm["attempts"], counted["arrivals"]);
    assert_eq!(storm["connected"], counted["admitted"]);
    let refused = |field: &Value| -> u64 {
        let counts = field.as_object().unwrap().values();
        counts.map(|times| times.as_u64().unwrap()).sum()
    };
    assert!(refused(&counted["refused"]) > 0, "{counted}");
    assert_eq!(refused(&storm["refused"]), refused(&counted["refused"]));
    for (protocol, code) in [("3.1.1", "3"), ("5", "137")] {
        let rows = storm["by_protocol"].as_array().unwrap();
        let row = rows.iter().find(|row| row["name"] == protocol).unwrap();
        assert_eq!(row["refused"], counted["refused"][code], "{protocol}");
    }

    let open = time::OffsetDateTime::parse(
        devices["open"].as_str().unwrap(),
        &time::format_description::well_known::Rfc3339,
    );
    let open = open.unwrap().unix_timestamp_nanos() as f64 / 1e9;
    let returns = devices["returns"].as_array().unwrap();
    assert_eq!(returns.len(), DEVICES);
    let moments: Vec<f64> = returns
        .iter()
        .map(|back| open + back[0].as_f64().unwrap())
        .collect();
    assert_back_at(storm, &moments);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kill_in_a_storm_costs_a_second_of_records_and_leaves_a_chain_that_holds() {
    let scene = Scene::new();
    let broker = Stub::content().await;
    let (folder, path) = log_folder(&scene);
    let settings = [
        ("audit.path", path.as_str()),
        ("audit.rotate", "\"64KiB\""),
        ("audit.keep", "1000"),
        ("admission.rate", "1"),
        ("admission.burst", "1"),
    ];
    let daemon = Daemon::start(&scene, broker.address(), &settings);
    let address = daemon.address();
    let over = Arc::new(AtomicBool::new(false));
    let mut clients = JoinSet::new();
    for task in 0..4 {
        let over = Arc::clone(&over);
        clients.spawn(async move {
            let mut answered = Vec::new();
            for number in 0.. {
                let id = format!("sensor-{task}-{number:05}");
                let Ok(mut device) = Device::try_dial(address).await else {
                    break;
                };
                let sent = device.try_send(&Connect::level(4, &id).bytes()).await;
                if sent.is_err() || device.try_packet().await.is_err() || over.load(Ordering::Relaxed) {
                    break;
                }
                answered.push((id, Instant::now()));
            }
            answered
        });
    }
    sleep(Duration::from_secs(3)).await;
    let killed = Instant::now();
    daemon.signal(Signal::KILL);
    over.store(true, Ordering::Relaxed);
    daemon.wait_for_end(PATIENCE);
    let answered: Vec<(String, Instant)> = clients.join_all().await.into_iter().flatten().collect();

    let found = figures(&files(&folder));
    let text: String = files(&folder)
        .iter()
        .map(|path| String::from_utf8_lossy(&std::fs::read(path).unwrap()).into_owned())
        .collect();
    let known: HashSet<&str> = text
        .split("\"client_id\":\"")
        .skip(1)
        .filter_map(|rest| rest.split('"').next())
        .collect();
    let lost: Vec<_> = answered.iter().filter(|(id, _)| !known.contains(&**id)).collect();
    report(&format!(
        "{} answered, {} of them lost in the log",
        answered.len(),
        lost.len()
    ));
    let log = &found["logs"][0];
    let mean = log["bytes"].as_f64().unwrap() / log["lines"].as_f64().unwrap();
    report(&format!("{mean:.0} bytes a record"));
    assert!(answered.len() > 20, "{} answered", answered.len());
    for (id, at) in lost {
        let before = killed.saturating_duration_since(*at);
        assert!(
            before < Duration::from_secs(1),
            "{id} was answered {before:?} before the kill"
        );
    }
    assert!(found["logs"][0]["lines"].as_u64().unwrap() > 20);

    // Whatever was torn off, the next process goes on with the chain.
    let daemon = Daemon::start(&scene, broker.address(), &settings);
    drop(Device::join(&daemon, Connect::v5("after")).await);
    daemon.signal(Signal::TERM);
    daemon.wait_for_end(PATIENCE);
    let found = figures(&files(&folder));
    assert_eq!(
        (&found["logs"][0]["breaks"], &found["proxy"]["starts"]),
        (&0.into(), &2.into())
    );
    assert!(found["logs"][0]["cut_off"].is_null());

    let path = folder.join("audit.jsonl");
    let mut lines: Vec<String> = std::fs::read_to_string(&path)
        .unwrap()
        .lines()
        .map(Into::into)
        .collect();
    lines.remove(0);
    std::fs::write(&path, lines.join("\n") + "\n").unwrap();
    let finished = seawall_report(&files(&folder), &[]);
    assert_eq!(finished.code, Some(1), "{}", finished.stdout);
    let expected = format!("the chain is broken at {}, line 1", path.display());
    assert!(finished.stderr.contains(&expected), "{}", finished.stderr);
    let nothing = seawall_report(&[folder.join("nothing")], &[]);
    assert_eq!(nothing.code, Some(71), "{}", nothing.stderr);
}
