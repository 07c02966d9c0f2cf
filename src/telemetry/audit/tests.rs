use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use proptest::prelude::*;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::chain::{Broken, Link, follow};
use super::*;
use crate::mqtt::{Protocol, Version};
use crate::reason::Reason;
use crate::telemetry::Telemetry;
use crate::telemetry::ending::{
    Decision, Handshake, HandshakeFailure, HandshakeKind, Phase, Side, TlsVersion,
};
use crate::telemetry::metrics::Shed;

struct Run {
    telemetry: Telemetry,
    metrics: Arc<Metrics>,
}

fn settings(path: &Path) -> Settings {
    Settings {
        path: path.to_owned(),
        rotate: 1024 * 1024 * 1024,
        keep: 8,
    }
}

fn run(settings: Settings) -> Run {
    let metrics = Metrics::new(&["127.0.0.1:1883".to_owned()], &["tablets".to_owned()]).unwrap();
    let audit = Audit::start(settings, Arc::clone(&metrics)).unwrap();
    Run {
        telemetry: Telemetry::new(Arc::clone(&metrics)).with_audit(audit),
        metrics,
    }
}

fn attempt(number: u64, client_id: &str) -> Attempt {
    let mut attempt = Attempt::new(number, (Ipv4Addr::new(10, 1, 2, 3), 54321).into());
    let took = Duration::from_millis(4);
    attempt.handshake = Some(Ok(Handshake {
        kind: HandshakeKind::Full,
        version: TlsVersion::V1_3,
        took,
    }));
    attempt.protocol = Protocol::Known(Version::V3_1_1);
    attempt.client_id = Some(client_id.to_owned());
    attempt.clean = Some(true);
    attempt
}

fn refused(number: u64, client_id: &str) -> Attempt {
    Attempt {
        decision: Some(Decision::Refused(Reason::HoldFull)),
        ..attempt(number, client_id)
    }
}

fn ending(phase: Phase) -> Ending {
    Ending {
        side: Side::Client,
        phase,
        cause: "reset",
        lasted: Duration::from_millis(12_345),
        bytes_up: 77,
        bytes_down: 4,
    }
}

/// All lines of the log, the oldest file first.
fn lines(path: &Path) -> Vec<String> {
    let mut paths: Vec<PathBuf> = names::rotated(path)
        .unwrap()
        .into_iter()
        .map(|stamp| stamp.path(path))
        .collect();
    paths.extend(path.exists().then(|| path.to_owned()));
    let texts = paths.iter().map(|path| fs::read_to_string(path).unwrap());
    texts
        .flat_map(|text| text.lines().map(ToOwned::to_owned).collect::<Vec<_>>())
        .collect()
}

/// Where the chain of these lines is broken, as index; `None`: nowhere.
fn broken(lines: &[String]) -> Option<(usize, Broken)> {
    let mut link = Link::FIRST;
    for (index, line) in lines.iter().enumerate() {
        match follow(link, line.as_bytes()) {
            Ok(next) => link = next,
            Err(broken) => return Some((index, broken)),
        }
    }
    None
}

fn parsed(lines: &[String]) -> Vec<Value> {
    lines
        .iter()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn events(path: &Path) -> Vec<String> {
    parsed(&lines(path))
        .iter()
        .map(|line| line["event"].as_str().unwrap().to_owned())
        .collect()
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(
            begun.elapsed() < Duration::from_secs(20),
            "waited in vain: {what}"
        );
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

fn folder() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit.jsonl");
    (folder, path)
}

#[test]
fn an_attempt_has_its_line_when_its_outcome_is_known_and_a_session_another_at_its_end() {
    let (_folder, path) = folder();
    let Run { telemetry, .. } = run(settings(&path));
    let mut session = attempt(7, "sensor-42");
    telemetry.observe(&mut session);
    session.held = Some(Duration::from_millis(1500));
    session.decision = Some(Decision::Admitted {
        would_refuse: Some(Reason::Rate),
    });
    session.server = Some(0);
    session.connack = Some((0, Duration::from_micros(12_340)));
    telemetry.observe(&mut session);
    telemetry.record(&mut session, &ending(Phase::Relaying));
    let mut in_lane = refused(8, "sensor-43");
    in_lane.lane = Some(0);
    telemetry.record(&mut in_lane, &ending(Phase::Refusing));
    let mut stranger = Attempt::new(9, "[2001:db8::1]:5".parse().unwrap());
    stranger.handshake = Some(Err(HandshakeFailure::NotTls));
    telemetry.record(&mut stranger, &ending(Phase::Handshake));
    drop(telemetry);

    let lines = lines(&path);
    assert_eq!(broken(&lines), None);
    let mut found = parsed(&lines);
    for line in &mut found {
        let line = line.as_object_mut().unwrap();
        let ts = line.remove("ts").unwrap();
        let ts = ts.as_str().unwrap();
        let shape: String = ts
            .chars()
            .map(|c| if c.is_ascii_digit() { '0' } else { c })
            .collect();
        assert_eq!(shape, "0000-00-00T00:00:00.000000Z");
        assert_eq!(line.remove("prev").unwrap().as_str().unwrap().len(), 64);
    }
    assert_eq!(
        found,
        [
            json!({"event": "start", "version": env!("CARGO_PKG_VERSION")}),
            json!({"event": "attempt", "conn": 7, "source": "10.1.2.3:54321", "client_id": "sensor-42",
                "protocol": "3.1.1", "clean": true, "lane": "default", "tls": "1.3 full", "decision": "admitted",
                "would_refuse": "rate", "waited_ms": 1500, "server": "127.0.0.1:1883", "connack": 0,
                "connack_ms": 12.3}),
            json!({"event": "end", "conn": 7, "side": "client", "phase": "relaying", "cause": "reset",
                "seconds": 12.345, "bytes_up": 77, "bytes_down": 4}),
            json!({"event": "attempt", "conn": 8, "source": "10.1.2.3:54321", "client_id": "sensor-43",
                "protocol": "3.1.1", "clean": true, "lane": "tablets", "tls": "1.3 full", "decision": "refused",
                "reason": "hold-full"}),
            json!({"event": "attempt", "conn": 9, "source": "[2001:db8::1]:5", "tls": "failed",
                "reason": "not-tls"}),
            json!({"event": "stop"}),
        ]
    );
    let longest = lines.iter().map(String::len).max().unwrap();
    let mean = lines.iter().map(|line| line.len() + 1).sum::<usize>() / lines.len();
    println!(
        "mean {mean} bytes a line, longest {longest}, refusal {}",
        lines[3].len()
    );
    assert!(lines[3].len() < 300 && mean < 300);
}

#[test]
fn what_an_attempt_took_is_told_where_it_is_not_clear_from_the_rest() {
    let (_folder, path) = folder();
    let Run { telemetry, .. } = run(settings(&path));
    let now = wall_clock();
    for (number, before, held) in [
        (1, 5, None),
        (2, 2500, None),
        (3, 2500, Some(2495)),
        (4, 2500, Some(1000)),
    ] {
        let mut attempt = refused(number, "sensor");
        attempt.accepted = now.checked_sub(Duration::from_millis(before));
        attempt.held = held.map(Duration::from_millis);
        telemetry.observe(&mut attempt);
    }
    let mut of_the_future = refused(5, "sensor");
    of_the_future.accepted = now.checked_add(Duration::from_secs(3600));
    telemetry.observe(&mut of_the_future);
    // Shed by the gate: it comes neither to a handshake nor to a decision, and is counted in a line `shed`.
    let mut shed = Attempt::new(6, (Ipv4Addr::LOCALHOST, 1).into());
    telemetry.record(&mut shed, &ending(Phase::Handshake));
    drop(telemetry);
    let found = parsed(&lines(&path));
    let took: Vec<bool> = found
        .iter()
        .filter(|line| line["event"] == "attempt")
        .map(|line| {
            line["took_ms"]
                .as_u64()
                .is_some_and(|took| (2500..7500).contains(&took))
        })
        .collect();
    assert_eq!(took, [false, true, false, true, false]);
}

#[test]
fn changes_and_sheds_have_lines_of_their_own() {
    let (_folder, path) = folder();
    let Run { telemetry, metrics } = run(settings(&path));
    let details = json!({"spread_seconds": 30, "event2": "a\nb"});
    telemetry
        .audit()
        .unwrap()
        .change(Change::Drain, details.as_object().unwrap().clone());
    for _ in 0..3 {
        metrics.shed(Shed::Descriptors);
    }
    eventually("the sheds are told", || {
        events(&path).contains(&"shed".to_owned())
    });
    drop(telemetry);
    let lines = lines(&path);
    assert_eq!(broken(&lines), None);
    let found = parsed(&lines);
    assert_eq!(
        (&found[1]["event"], &found[1]["event2"]),
        (&json!("drain"), &json!("a\nb"))
    );
    let sheds: Vec<&Value> = found.iter().filter(|line| line["event"] == "shed").collect();
    assert_eq!(sheds.len(), 1);
    assert_eq!(sheds[0]["counts"], json!({"descriptors": 3}));
}

#[test]
fn a_figure_is_a_number_and_never_rounded_to_nothing() {
    for (value, written) in [
        (200.0, "200.0"),
        (0.001, "0.001"),
        (1.0 / 3.0, "0.333333"),
        (12_345.678, "12345.7"),
        (0.0, "0.0"),
        (f64::INFINITY, "null"),
    ] {
        assert_eq!(figure(value).to_string(), written);
    }
}

#[test]
fn other_limits_hold_from_the_next_line_on() {
    let (_folder, path) = folder();
    let Run { telemetry, .. } = run(settings(&path));
    telemetry.audit().unwrap().limit(2000, 2);
    for number in 0..50 {
        telemetry.observe(&mut refused(number, "sensor"));
    }
    drop(telemetry);
    assert_eq!(names::rotated(&path).unwrap().len(), 2);
}

#[test]
fn the_chain_goes_on_over_rotation_and_restart_and_the_oldest_files_go() {
    let (folder, path) = folder();
    let small = Settings {
        rotate: 2000,
        keep: 1000,
        ..settings(&path)
    };
    for start in [0, 50] {
        let Run { telemetry, .. } = run(small.clone());
        for number in start..start + 50 {
            telemetry.observe(&mut refused(number, "sensor"));
        }
    }
    let all = lines(&path);
    assert_eq!(broken(&all), None);
    assert_eq!(all.len(), 104);
    let rotated = names::rotated(&path).unwrap();
    assert!(rotated.len() >= 14, "{rotated:?}");
    for stamp in &rotated {
        assert!(fs::metadata(stamp.path(&path)).unwrap().len() <= 2000);
    }

    let Run { telemetry, .. } = run(Settings { keep: 3, ..small });
    for number in 100..110 {
        telemetry.observe(&mut refused(number, "sensor"));
    }
    drop(telemetry);
    let kept = names::rotated(&path).unwrap();
    assert_eq!(kept.len(), 3);
    assert!(kept[2] > *rotated.last().unwrap());
    let lines = lines(&path);
    let first = Link::in_line(lines[0].as_bytes()).unwrap();
    assert!(
        first != Link::FIRST,
        "the oldest line that is kept still tells of the one before it"
    );
    let rest = lines
        .iter()
        .try_fold(first, |link, line| follow(link, line.as_bytes()));
    assert!(rest.is_ok(), "{rest:?}");
    assert_eq!(
        fs::read_dir(folder.path()).unwrap().count(),
        5,
        "the file, its head, three full ones"
    );
}

#[test]
fn a_changed_removed_moved_or_added_line_shows() {
    let (_folder, path) = folder();
    let Run { telemetry, .. } = run(settings(&path));
    for number in 0..20 {
        telemetry.observe(&mut refused(number, "sensor"));
    }
    drop(telemetry);
    let lines = lines(&path);
    assert_eq!(broken(&lines), None);
    for index in 0..lines.len() - 1 {
        let mut edited = lines.clone();
        edited[index] = edited[index].replacen("\"event\":\"", "\"event\":\"x", 1);
        assert_eq!(broken(&edited).unwrap().0, index + 1);
        let mut removed = lines.clone();
        removed.remove(index);
        assert_eq!(broken(&removed).unwrap().0, index);
        let mut swapped = lines.clone();
        swapped.swap(index, index + 1);
        assert_eq!(broken(&swapped).unwrap().0, index);
        let mut added = lines.clone();
        added.insert(index, lines[index].clone());
        assert_eq!(broken(&added).unwrap().0, index + 1);
    }
}

#[test]
fn wherever_a_kill_tears_the_last_line_it_is_cut_off_and_the_chain_goes_on() {
    let (_folder, path) = folder();
    drop(run(settings(&path)));
    let whole = fs::read(&path).unwrap();
    let last = whole[..whole.len() - 1]
        .iter()
        .rposition(|byte| *byte == b'\n')
        .unwrap()
        + 1;
    // The line before the last is the one that the head of a killed process tells of.
    let older = json!({"ts": "", "bytes": last, "hash": Link::of(&whole[..last - 1]).as_str()}).to_string();
    for cut in last..whole.len() {
        fs::write(&path, &whole[..cut]).unwrap();
        fs::write(path.with_file_name("audit.jsonl.head"), &older).unwrap();
        drop(run(settings(&path)));
        let lines = lines(&path);
        assert_eq!(broken(&lines), None, "cut at {cut}");
        let start = &parsed(&lines)[1];
        assert_eq!(start["event"], "start");
        assert_eq!(
            start["torn_bytes"].as_u64().unwrap_or(0) as usize,
            cut - last,
            "cut at {cut}"
        );
        assert_eq!(start.get("missing"), None);
    }
}

#[test]
fn a_tail_that_somebody_cut_off_shows_as_a_break_where_it_was() {
    let (_folder, path) = folder();
    let Run { telemetry, .. } = run(settings(&path));
    for number in 0..5 {
        telemetry.observe(&mut refused(number, "sensor"));
    }
    drop(telemetry);
    let kept = lines(&path)[..4].join("\n") + "\n";
    for left in [kept.as_str(), ""] {
        fs::write(&path, left).unwrap();
        drop(run(settings(&path)));
        let lines = lines(&path);
        let at = left.lines().count();
        assert_eq!(broken(&lines).unwrap().0, at);
        assert_eq!(parsed(&lines)[at]["missing"], true);
    }
}

#[test]
fn a_file_that_is_moved_away_or_removed_is_followed_by_a_new_one() {
    let (folder, path) = folder();
    let Run { telemetry, .. } = run(settings(&path));
    eventually("the first line is there", || !lines(&path).is_empty());
    let moved = folder.path().join("moved");
    fs::rename(&path, &moved).unwrap();
    telemetry.audit().unwrap().reopen();
    telemetry.observe(&mut refused(1, "one"));
    eventually("a new file has the record", || {
        path.exists() && lines(&path).len() == 1
    });
    let mut all: Vec<String> = fs::read_to_string(&moved)
        .unwrap()
        .lines()
        .map(ToOwned::to_owned)
        .collect();
    all.extend(lines(&path));
    assert_eq!(broken(&all), None);
    fs::remove_file(&path).unwrap();
    telemetry.observe(&mut refused(2, "two"));
    eventually("and another one", || path.exists() && !lines(&path).is_empty());
    assert_eq!(
        Link::in_line(lines(&path)[0].as_bytes()),
        Some(Link::of(all.last().unwrap().as_bytes()))
    );
}

#[test]
fn a_removed_folder_holds_records_back_until_it_is_there_again() {
    let (root, _) = folder();
    let folder = root.path().join("log");
    let path = folder.join("audit.jsonl");
    fs::create_dir(&folder).unwrap();
    let Run { telemetry, metrics } = run(settings(&path));
    eventually("the first line is there", || !lines(&path).is_empty());
    let first = lines(&path).remove(0);
    fs::remove_dir_all(&folder).unwrap();
    telemetry.observe(&mut refused(1, "one"));
    eventually("it says so", || metrics.audit().failing.get() == 1);
    telemetry.observe(&mut refused(2, "two"));
    fs::create_dir(&folder).unwrap();
    eventually("it is well again", || metrics.audit().failing.get() == 0);
    drop(telemetry);
    let found = lines(&path);
    assert_eq!(
        Link::in_line(found[0].as_bytes()),
        Some(Link::of(first.as_bytes()))
    );
    assert_eq!(
        parsed(&found)
            .iter()
            .filter(|line| line["event"] == "attempt")
            .count(),
        2
    );
    assert_eq!(metrics.audit().dropped.get(), 0);
}

#[test]
fn a_full_disk_delays_nobody_is_counted_and_is_told_of_when_there_is_room() {
    let (_folder, path) = folder();
    let Run { telemetry, metrics } = run(settings(&path));
    let before = fail(&path, &telemetry, &metrics);
    let begun = Instant::now();
    let sent = MAX_QUEUED as u64 + 1000;
    for number in 0..sent {
        telemetry.observe(&mut refused(number, "sensor"));
    }
    let each = begun.elapsed() / sent as u32;
    assert!(each < Duration::from_micros(50), "{each:?} for a record");
    assert_eq!(metrics.audit().dropped.get(), 1000);
    fs::remove_file(&path).unwrap();
    eventually("it is told", || {
        events_so_far(&path).contains(&"dropped".to_owned())
    });
    drop(telemetry);
    let lines = [lines(&before), lines(&path)].concat();
    assert_eq!(broken(&lines), None);
    let found = parsed(&lines);
    assert_eq!(
        found.iter().filter(|line| line["event"] == "attempt").count(),
        MAX_QUEUED + 1
    );
    assert_eq!(
        found.iter().find(|line| line["event"] == "dropped").unwrap()["count"],
        1000
    );
}

/// Puts something that can't be written in the place of the log, has one attempt observed, and waits until the writer holds
/// it back. Returns where the log of before is.
fn fail(path: &Path, telemetry: &Telemetry, metrics: &Metrics) -> PathBuf {
    eventually("the first is written", || !events_so_far(path).is_empty());
    let moved = path.with_file_name("moved.jsonl");
    fs::rename(path, &moved).unwrap();
    std::os::unix::fs::symlink("/dev/full", path).unwrap();
    telemetry.observe(&mut refused(0, "held back"));
    eventually("it says so", || metrics.audit().failing.get() == 1);
    moved
}

/// While it is written: without what may be half a line at its end.
fn events_so_far(path: &Path) -> Vec<String> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let whole: Vec<String> = text
        .split_inclusive('\n')
        .filter(|line| line.ends_with('\n'))
        .map(ToOwned::to_owned)
        .collect();
    parsed(&whole)
        .iter()
        .map(|line| line["event"].as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn waiting_client_ids_are_bounded_in_bytes() {
    let (_folder, path) = folder();
    let Run { telemetry, metrics } = run(settings(&path));
    fail(&path, &telemetry, &metrics);
    let long = "x".repeat(65_535);
    for number in 0..300 {
        telemetry.observe(&mut refused(number, &long));
    }
    let kept = (MAX_QUEUED_BYTES / 65_535) as u64;
    assert_eq!(metrics.audit().dropped.get(), 300 - kept);
}

#[test]
fn a_second_writer_and_a_file_that_is_no_log_are_turned_down() {
    let (folder, path) = folder();
    let first = run(settings(&path));
    let start = |path: &Path| {
        Audit::start(settings(path), Metrics::new(&[], &[]).unwrap())
            .err()
            .map(|e| e.to_string())
    };
    let shown = path.display();
    assert_eq!(
        start(&path),
        Some(format!("audit.path: {shown} is written by another process"))
    );
    drop(first);
    assert_eq!(start(&path), None);
    let blob = folder.path().join("blob");
    fs::write(&blob, vec![b'x'; 1024 * 1024 + 1]).unwrap();
    assert!(start(&blob).unwrap().contains("is another file"));
    assert_eq!(fs::metadata(&blob).unwrap().len(), 1024 * 1024 + 1);
    let precious = folder.path().join("precious");
    fs::write(&precious, "line one\nline two, without an end").unwrap();
    assert!(start(&precious).unwrap().contains("is another file"));
    assert_eq!(
        fs::read(&precious).unwrap(),
        b"line one\nline two, without an end"
    );
    assert!(start(Path::new("/dev/null")).unwrap().contains("is a device"));
    let nowhere = folder.path().join("nowhere/audit.jsonl");
    assert!(start(&nowhere).unwrap().starts_with("audit.path: can't open "));
}

#[test]
fn a_foreign_file_that_comes_to_the_path_is_left_alone_and_nothing_is_lost() {
    let (_folder, path) = folder();
    let Run { telemetry, metrics } = run(settings(&path));
    telemetry.observe(&mut refused(1, "before"));
    eventually("the first is written", || events_so_far(&path).len() == 2);
    let moved = path.with_file_name("moved.jsonl");
    fs::rename(&path, &moved).unwrap();
    fs::write(&path, "somebody's notes\nand a last").unwrap();
    telemetry.observe(&mut refused(2, "after"));
    eventually("it fails", || metrics.audit().failing.get() == 1);
    assert_eq!(fs::read(&path).unwrap(), b"somebody's notes\nand a last");
    fs::remove_file(&path).unwrap();
    eventually("it is written again", || {
        path.exists() && !events_so_far(&path).is_empty()
    });
    assert_eq!(metrics.audit().failing.get(), 0);
    assert_eq!(metrics.audit().dropped.get(), 0);
}

const CHILD: &str = "SEAWALL_TEST_AUDIT_CHILD";

/// Not a test of its own: the process that the next one kills.
#[test]
fn writes_until_it_is_killed() {
    let Some(path) = std::env::var_os(CHILD) else {
        return;
    };
    let Run { telemetry, metrics } = run(Settings {
        rotate: 200_000,
        keep: 1000,
        ..settings(Path::new(&path))
    });
    for number in 0..u64::MAX {
        telemetry.observe(&mut refused(number, "sensor"));
        if number - metrics.audit().records.get() > 4000 {
            std::thread::park_timeout(Duration::from_millis(1));
        }
    }
}

#[test]
fn a_process_killed_in_a_storm_leaves_a_chain_that_verifies_and_goes_on() {
    let (_folder, path) = folder();
    for round in 1..=4_u64 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "telemetry::audit::tests::writes_until_it_is_killed"])
            .env(CHILD, &path)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let full = || names::rotated(&path).unwrap().len() as u64;
        let before = full();
        eventually("some files are full", || full() >= before + round);
        child.kill().unwrap();
        child.wait().unwrap();
        let mut found = lines(&path);
        if !fs::read(&path).is_ok_and(|bytes| bytes.is_empty() || bytes.ends_with(b"\n")) {
            found.pop();
        }
        assert_eq!(broken(&found), None);
    }
    drop(run(settings(&path)));
    let lines = lines(&path);
    assert_eq!(broken(&lines), None);
    let starts: Vec<Value> = parsed(&lines)
        .into_iter()
        .filter(|line| line["event"] == "start")
        .collect();
    assert_eq!(starts.len(), 5);
    assert!(
        starts.iter().all(|start| start.get("missing").is_none()),
        "{starts:?}"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// No client id can break its line, or the chain, or come back as another one.
    #[test]
    fn any_client_id_round_trips(ids in prop::collection::vec(any::<String>(), 1..20)) {
        let (_folder, path) = folder();
        let Run { telemetry, .. } = run(settings(&path));
        for (number, id) in ids.iter().enumerate() {
            telemetry.observe(&mut refused(number as u64, id));
        }
        drop(telemetry);
        let lines = lines(&path);
        prop_assert_eq!(broken(&lines), None);
        let found = parsed(&lines);
        let found: Vec<&str> = found.iter().filter_map(|line| line["client_id"].as_str()).collect();
        prop_assert_eq!(found, ids);
    }
}
