//! Logs written by hand, byte by byte as `docs/audit.md` has them, and what is read from them.

use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::Path;

use aws_lc_rs::digest::{SHA256, digest};
use fastrand::Rng;
use flate2::Compression;
use flate2::write::GzEncoder;
use tempfile::TempDir;

use super::*;

/// 2026-11-29T10:00:00Z.
const TEN: f64 = 1_795_946_400.0;

fn hash(line: &str) -> String {
    let bytes = digest(&SHA256, line.as_bytes());
    bytes.as_ref().iter().fold(String::new(), |mut hex, byte| {
        write!(hex, "{byte:02x}").unwrap();
        hex
    })
}

/// Seconds after ten o'clock.
fn ts(seconds: f64) -> String {
    let micros = (seconds * 1e6).round() as u64;
    let (second, micros) = (micros / 1_000_000, micros % 1_000_000);
    format!(
        "2026-11-29T{:02}:{:02}:{:02}.{micros:06}Z",
        10 + second / 3600,
        second / 60 % 60,
        second % 60
    )
}

/// A log being written: lines without their link, in the order of time once it is finished.
#[derive(Default)]
struct Writer(Vec<(f64, String)>);

impl Writer {
    fn line(&mut self, at: f64, body: &str) {
        self.0.push((at, format!("{{\"ts\":\"{}\",{body}", ts(at))));
    }

    fn attempt(&mut self, at: f64, took_ms: u32, id: &str, outcome: &str) {
        let body = format!(
            r#""event":"attempt","conn":1,"source":"10.1.2.3:5","client_id":"{id}","protocol":"3.1.1","clean":true,"lane":"default","tls":"1.3 full",{outcome},"took_ms":{took_ms}"#
        );
        self.line(at, &body);
    }

    fn refused(&mut self, at: f64, id: &str) {
        self.attempt(at, 10, id, r#""decision":"refused","reason":"rate""#);
    }

    fn connected(&mut self, at: f64, id: &str) {
        self.attempt(
            at,
            20,
            id,
            r#""decision":"admitted","server":"s","connack":0,"connack_ms":12.5"#,
        );
    }

    /// The lines, each with its link, from `before` on.
    fn lines(mut self, before: &str) -> Vec<String> {
        self.0.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut prev = before.to_owned();
        let chained = |(_, line): (f64, String)| {
            let line = format!("{line},\"prev\":\"{prev}\"}}");
            prev = hash(&line);
            line
        };
        self.0.into_iter().map(chained).collect()
    }
}

fn zeros() -> String {
    "0".repeat(64)
}

fn text(lines: &[String]) -> String {
    lines.iter().fold(String::new(), |text, line| text + line + "\n")
}

fn head(lines: &[String]) -> String {
    let last = lines.last().unwrap();
    format!(
        r#"{{"ts":"","bytes":{},"hash":"{}"}}"#,
        text(lines).len(),
        hash(last)
    )
}

struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path
    }

    /// A whole log with its head.
    fn log(&self, lines: &[String]) -> Vec<PathBuf> {
        self.write("audit.jsonl.head", &head(lines));
        vec![self.write("audit.jsonl", &text(lines))]
    }
}

/// 100 devices lose their sessions at 60 s and come at 70 s: ten get in at once, the others are refused and get in with
/// later attempts, 20 each 5 s.
fn storm() -> Writer {
    let mut log = Writer::default();
    log.line(0.0, r#""event":"start","version":"1""#);
    log.line(1.0, r#""event":"rate","to":"4.0""#);
    for device in 0..100 {
        let id = format!("sensor-{device:03}");
        log.line(
            60.0 + 0.001 * f64::from(device),
            r#""event":"end","conn":1,"side":"client""#,
        );
        let offset = 70.0 + 0.0002 * f64::from(device);
        let tries = if device < 10 { 0 } else { (device - 10) / 20 + 1 };
        for attempt in 0..tries {
            log.refused(offset + 5.0 * f64::from(attempt), &id);
        }
        log.connected(offset + 5.0 * f64::from(tries), &id);
    }
    log.line(71.0, r#""event":"shed","counts":{"handshake-full":7}"#);
    log
}

fn only_storm(report: &Report) -> &Summary {
    let storms = &report.proxy.as_ref().unwrap().storms;
    assert_eq!(storms.len(), 1);
    &storms[0]
}

#[test]
fn the_figures_of_a_storm_are_those_of_its_lines() {
    let folder = Folder::new();
    let report = read(&folder.log(&storm().lines(&zeros())), None).unwrap();
    assert!(report.chains_hold());
    let log = &report.logs[0];
    assert!(log.from_the_beginning && log.end_checked && log.cut_off.is_none());
    let storm = only_storm(&report);
    // 20 × (1 + 2 + 3 + 4) and 10 × 5.
    assert_eq!(storm.refused.get("rate"), Some(&250));
    assert_eq!(
        (storm.connected, storm.admitted, storm.attempts),
        (100, 100, 100 + 250 + 7)
    );
    assert_eq!(storm.shed.get("handshake-full"), Some(&7));
    assert_eq!((storm.clients, storm.back), (100, 100));
    assert_eq!((storm.lost_before, storm.lost_began), (100, Some(TEN + 60.0)));
    // 20 ms after it was accepted the first got in, 10 ms after it was accepted the first was refused.
    assert!(
        (storm.started - (TEN + 70.0 - 0.02)).abs() < 1e-3,
        "{}",
        storm.started
    );
    let after: Vec<f64> = storm
        .back_after
        .iter()
        .map(|share| share.seconds.unwrap())
        .collect();
    for (found, expected) in
        after
            .iter()
            .zip([10.0098 + 0.02, 20.0178 + 0.02, 25.0196 + 0.02, 25.0198 + 0.02])
    {
        assert!((found - expected).abs() < 0.005, "{after:?}");
    }
    assert_eq!(storm.attempts_each, [3, 6, 6]);
    let capacity = storm.capacity.unwrap();
    assert_eq!(capacity.used, 90);
    assert!(
        (capacity.allowed - 4.0 * capacity.seconds).abs() < 0.01,
        "{capacity:?}"
    );
    let lanes = &storm.by_lane;
    assert_eq!(
        (lanes.len(), &*lanes[0].name, lanes[0].attempts),
        (1, "default", 350)
    );
    assert_eq!(storm.by_source[0].name, "10.1.2.0/24");
    assert_eq!(storm.hammered[0].attempts, 6);
    assert!((storm.waited_longest[0].seconds - 25.0).abs() < 0.1);
    let pattern = &storm.patterns.by_client_id[0];
    assert_eq!(
        pattern.sentence("of"),
        "50 devices of `sensor-*` retry every 4.99 s in lockstep (phase concentration 1.00)"
    );
    assert_eq!(storm.patterns.unknown, 50);
}

#[test]
fn text_and_page_answer_the_questions() {
    let folder = Folder::new();
    let mut log = storm();
    for second in 0..20 {
        log.refused(70.0 + f64::from(second), r"<script>alert(1)</script>\u001b[2J");
    }
    let report = read(&folder.log(&log.lines(&zeros())), None).unwrap();
    let text = report.to_text(100);
    for words in [
        "the chain holds",
        "Storm 1: began 2026-11-29 10:01:09.980 UTC",
        "100 sessions ended in the two minutes before, from 10:01:00 on",
        "100 of 101 clients; 1 tried and were not back when the log ends",
        "50 % 15.0",
        "100 % never",
        "refused          rate 270",
        "shed             handshake-full 7",
        "50 devices of `sensor-*` retry every 4.99 s in lockstep",
        "with protocol `3.1.1`",
        "from `10.1.2.0/24`",
    ] {
        assert!(text.contains(words), "no {words:?} in {text}");
    }
    assert!(!text.contains('\u{1b}'));
    let html = report.to_html();
    for part in [
        "<svg",
        "&lt;script&gt;alert(1)",
        "10.1.2.0/24",
        "Came most often",
        "CONNACK latency",
    ] {
        assert!(html.contains(part), "no {part:?}");
    }
    assert!(!html.contains("<script") && !html.contains('\u{1b}') && !html.contains("src="));
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["proxy"]["storms"][0]["clients"], 101);
    assert_eq!(
        json["proxy"]["storms"][0]["patterns"]["by_client_id"][0]["policy"],
        "fixed"
    );
}

#[test]
fn calm_is_no_storm_and_two_storms_are_two() {
    let folder = Folder::new();
    let mut log = Writer::default();
    for second in 0..900 {
        log.connected(f64::from(second), &format!("calm-{second}"));
    }
    log.refused(30.0, "one");
    for begin in [300.0, 600.0] {
        for device in 0..40 {
            let id = format!("sensor-{device}");
            log.refused(begin + f64::from(device) * 0.001, &id);
            log.connected(begin + 5.0, &id);
        }
    }
    let report = read(&folder.log(&log.lines(&zeros())), Some(10.0)).unwrap();
    let view = report.proxy.as_ref().unwrap();
    let begins: Vec<f64> = view
        .storms
        .iter()
        .map(|storm| (storm.started - TEN).round())
        .collect();
    assert_eq!(begins, [300.0, 600.0]);
    assert_eq!((view.small_storms, view.attempts), (1, 900 + 1 + 160));
    assert!(view.storms[0].capacity.is_some());
    let quiet = Folder::new();
    let mut log = Writer::default();
    log.connected(1.0, "a");
    let report = read(&quiet.log(&log.lines(&zeros())), None).unwrap();
    assert!(report.to_text(80).contains("No storm in it"));
    assert!(report.to_html().contains("No storm in it"));
}

/// What somebody did to a log of so many lines, and the line that is named for it.
type Deed = (&'static str, fn(&mut Vec<String>), fn(usize) -> usize);

#[test]
fn whatever_is_done_to_a_log_is_found_and_named() {
    let lines = storm().lines(&zeros());
    let count = lines.len();
    let deeds: [Deed; 9] = [
        (
            "a line in the middle edited",
            |lines| lines[9] = lines[9].replace("client", "broker"),
            |_| 11,
        ),
        (
            "the first line edited",
            |lines| lines[0] = lines[0].replace("\"1\"", "\"2\""),
            |_| 2,
        ),
        (
            "the last line edited",
            |lines| {
                let last = lines.last_mut().unwrap();
                *last = last.replacen("sensor", "Sensor", 1);
            },
            |count| count,
        ),
        ("a line removed", |lines| drop(lines.remove(9)), |_| 10),
        (
            "a line doubled",
            |lines| lines.insert(9, lines[9].clone()),
            |_| 11,
        ),
        ("two lines swapped", |lines| lines.swap(9, 10), |_| 10),
        (
            "the last line removed",
            |lines| drop(lines.pop()),
            |count| count - 1,
        ),
        ("half of it removed", |lines| lines.truncate(50), |_| 50),
        (
            "a line that is no record",
            |lines| lines[9] = "so what".into(),
            |_| 10,
        ),
    ];
    for (deed, does, expected) in deeds {
        let folder = Folder::new();
        let paths = folder.log(&lines);
        let mut edited = lines.clone();
        does(&mut edited);
        fs::write(&paths[0], text(&edited)).unwrap();
        let report = read(&paths, None).unwrap();
        assert!(!report.chains_hold(), "{deed}");
        let first = report.logs[0].first_break.as_ref().unwrap();
        assert_eq!(
            (first.line as usize, &first.file),
            (expected(count), &paths[0]),
            "{deed}: {first:?}"
        );
        let told = report.to_text(100);
        assert!(
            told.contains(&format!(
                "CHAIN BROKEN at {}, line {}",
                paths[0].display(),
                first.line
            )),
            "{told}"
        );
        assert!(report.to_html().contains("class=\"warning\""));
    }
}

#[test]
fn a_torn_last_line_is_cut_off_and_no_break() {
    let lines = storm().lines(&zeros());
    let folder = Folder::new();
    let paths = folder.log(&lines[..lines.len() - 1]);
    let whole = text(&lines);
    let last = lines.last().unwrap().len();
    for torn in [1, 40, last - 1, last] {
        fs::write(&paths[0], &whole[..whole.len() - 1 - last + torn]).unwrap();
        let report = read(&paths, None).unwrap();
        assert!(report.chains_hold(), "{torn}: {:?}", report.logs);
        let cut = report.logs[0].cut_off.as_ref().unwrap();
        assert_eq!((cut.bytes as usize, cut.line as usize), (torn, lines.len()));
        assert!(report.to_text(80).contains("its last line is cut off"));
    }
    // Elsewhere nothing explains it.
    let rotated = folder.write("audit-20261129T100000Z-0001.jsonl", &whole[..whole.len() - 5]);
    let report = read(&[rotated.clone(), folder.write("audit.jsonl", "")], None).unwrap();
    let first = report.logs[0].first_break.as_ref().unwrap();
    assert_eq!((first.line as usize, &first.file), (lines.len(), &rotated));
}

#[test]
fn rotated_compressed_and_missing_files_are_one_chain() {
    let lines = storm().lines(&zeros());
    let names = [
        "audit-20261129T100100Z-0001.jsonl.gz",
        "audit-20261129T100110Z-0001.jsonl",
        "audit.jsonl",
    ];
    let folder = Folder::new();
    let third = lines.len() / 3;
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(text(&lines[..third]).as_bytes()).unwrap();
    fs::write(folder.path(names[0]), encoder.finish().unwrap()).unwrap();
    folder.write(names[1], &text(&lines[third..2 * third]));
    folder.write(names[2], &text(&lines[2 * third..]));
    folder.write("audit.jsonl.head", &head(&lines[2 * third..]));
    let paths: Vec<PathBuf> = names.iter().rev().map(|name| folder.path(name)).collect();
    let report = read(&paths, None).unwrap();
    assert!(report.chains_hold(), "{:?}", report.logs);
    assert_eq!(
        (
            report.logs.len(),
            report.logs[0].files,
            report.logs[0].lines as usize
        ),
        (1, 3, lines.len())
    );
    assert_eq!(only_storm(&report).connected, 100);

    let gap = read(&[paths[0].clone(), paths[2].clone()], None).unwrap();
    let first = gap.logs[0].first_break.as_ref().unwrap();
    assert_eq!((first.line, &first.file), (1, &paths[0]));
    assert!(first.what.contains("missing"), "{first:?}");
    // The oldest files go with time: that is no break, and said.
    let young = read(&paths[..2], None).unwrap();
    assert!(young.chains_hold() && !young.logs[0].from_the_beginning);
    assert!(
        young
            .to_text(80)
            .contains("it begins before the first line that is here")
    );
    // Somebody removed the file that is written.
    fs::remove_file(&paths[0]).unwrap();
    assert!(!read(&paths[1..], None).unwrap().chains_hold());
    let garbage = folder.write("b/audit.jsonl.gz", "\u{1f}\u{fffd}");
    fs::write(&garbage, [0x1f, 0x8b, 1, 2, 3]).unwrap();
    assert!(matches!(read(&[garbage], None), Err(ReportError::Read { .. })));
}

#[test]
fn replicas_are_merged_by_time() {
    let folder = Folder::new();
    let (mut east, mut west) = (Writer::default(), Writer::default());
    for (log, rate) in [(&mut east, 3), (&mut west, 5)] {
        log.line(0.0, &format!(r#""event":"rate","to":"{rate}""#));
    }
    for device in 0..20 {
        let id = format!("sensor-{device}");
        // Balanced: each attempt comes to the other replica.
        for attempt in 0..4 {
            let log = if attempt % 2 == 0 { &mut east } else { &mut west };
            log.refused(70.0 + 5.0 * f64::from(attempt), &id);
        }
        west.connected(90.0, &id);
    }
    let paths = [
        folder.write("east/audit.jsonl", &text(&east.lines(&zeros()))),
        folder.write("west/audit.jsonl", &text(&west.lines(&zeros()))),
    ];
    let report = read(&paths, None).unwrap();
    assert_eq!(report.logs.len(), 2);
    let storm = only_storm(&report);
    assert_eq!(
        (storm.clients, storm.connected, storm.refused_in_all()),
        (20, 20, 80)
    );
    assert_eq!(storm.patterns.by_client_id[0].devices, 20);
    let capacity = storm.capacity.unwrap();
    assert!(
        (capacity.allowed / capacity.seconds - 8.0).abs() < 0.01,
        "{capacity:?}"
    );
}

#[test]
fn devices_tell_their_own_side() {
    let folder = Folder::new();
    let mut lines = String::new();
    for attempt in 1..=5 {
        for device in 0..20 {
            let at = ts(70.0 + 5.0 * f64::from(attempt));
            let outcome = if attempt < 5 {
                r#""failed","cause":"refused","connack":137"#
            } else {
                r#""connected""#
            };
            writeln!(
                lines,
                r#"{{"ts":"{at}","event":"reconnect","client_id":"pump-{device}","attempt":{attempt},"delay_ms":5000,"outcome":{outcome},"clean":true}}"#
            )
            .unwrap();
        }
    }
    let path = folder.write("devices.jsonl", &lines);
    let report = read(std::slice::from_ref(&path), None).unwrap();
    assert!(report.chains_hold() && report.logs[0].unchained && report.proxy.is_none());
    let storm = &report.devices.as_ref().unwrap().storms[0];
    assert_eq!(storm.refused_by_broker.get(&0x89), Some(&80));
    assert_eq!((storm.clients, storm.back), (20, 20));
    assert_eq!(
        storm.patterns.by_client_id[0].policy,
        Policy::Fixed { pause: 5.0 }
    );
    assert!(report.to_text(80).contains("a device's, without a chain"));
    // A line of a daemon has lost its link, and does not hide among those of devices.
    lines.push_str("{\"ts\":\"2026-11-29T10:15:00.000042Z\",\"event\":\"end\"}\n");
    fs::write(&path, &lines).unwrap();
    let report = read(&[path], None).unwrap();
    assert_eq!(report.logs[0].first_break.as_ref().unwrap().line, 101);
}

/// The mix of the acceptance: 60 % on a fixed 5 s, 20 % exponential, 20 % full jitter, four attempts each. Handshakes and
/// answers take their time, as they do in a storm; the log tells how long.
#[test]
fn a_mix_of_policies_is_told_apart() {
    let folder = Folder::new();
    let mut random = Rng::with_seed(6);
    let mut log = Writer::default();
    let devices = 1000;
    for device in 0..devices {
        let (kind, first) = match device % 5 {
            0 => ("meter", 1.0),
            1 => ("camera", 1.0),
            _ => ("sensor", 5.0),
        };
        let id = format!("{kind}-{device:06}");
        let mut at = 100.0 + random.f64() * 0.2;
        for attempt in 0..4 {
            let took = 0.005 + random.f64() * 3.0;
            at += took;
            log.attempt(
                at,
                (took * 1e3) as u32,
                &id,
                r#""decision":"refused","reason":"rate""#,
            );
            let growing = first * f64::from(1 << attempt);
            let pause = match kind {
                "meter" => growing,
                "camera" => random.f64() * growing,
                _ => first,
            };
            // The answer's way, the device's own overhead, the way of its SYN.
            at += pause + 0.001 + random.f64() * 0.025;
        }
    }
    let report = read(&folder.log(&log.lines(&zeros())), None).unwrap();
    let patterns = &only_storm(&report).patterns;
    let right = |name: &str, is_right: fn(&Policy) -> bool| -> u64 {
        let of_kind = patterns
            .by_client_id
            .iter()
            .filter(|pattern| pattern.name == name);
        of_kind
            .filter(|pattern| is_right(&pattern.policy))
            .map(|pattern| pattern.devices)
            .sum()
    };
    let found = [
        right(
            "sensor-*",
            |policy| matches!(policy, Policy::Fixed { pause } if (pause - 5.0).abs() < 0.05),
        ),
        right(
            "meter-*",
            |policy| matches!(policy, Policy::Exponential { factor, pause } if (factor - 2.0).abs() < 0.01 && (pause - 1.0).abs() < 0.1),
        ),
        right("camera-*", |policy| matches!(policy, Policy::Jittered { .. })),
    ];
    println!("right: {found:?} of 600, 200, 200");
    for (found, all) in found.iter().zip([600, 200, 200]) {
        assert!(found * 100 >= all * 95, "{found} of {all}: {patterns:?}");
    }
    assert!(found.iter().sum::<u64>() * 100 >= devices * 95);
}

#[test]
fn paths_that_lead_nowhere_are_told_of() {
    let error = read(&[Path::new("/nowhere/audit.jsonl").to_owned()], None).unwrap_err();
    assert!(error.to_string().contains("/nowhere/audit.jsonl"), "{error}");
}
