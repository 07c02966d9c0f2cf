//! How long a report of ten million records takes, and how much memory: `cargo bench --bench report [RECORDS]`.
//!
//! Writes an audit log of that many records into the temporary folder (3 GB for ten million): half a million devices on
//! several policies, refused again and again until they get in, then their ends. Reads it from the page cache, as far as
//! that reaches. The issue asks for 60 s and 1 GiB.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a bench: it prints, and a panic is its failure"
)]

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::Path;
use std::time::Instant;

use seawall::report;
use seawall::telemetry::audit::chain::Link;

const RECORDS: u64 = 10_000_000;
const DEVICES: u64 = 500_000;
/// Records of a second.
const PACE: u64 = 10_000;

fn main() {
    // `cargo test --benches` runs this as well; only `cargo bench` asks for figures.
    if !std::env::args().any(|argument| argument == "--bench") {
        return;
    }
    let records = std::env::args()
        .find_map(|word| word.parse().ok())
        .unwrap_or(RECORDS);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit.jsonl");
    let begun = Instant::now();
    generate(&path, records);
    let size = fs::metadata(&path).unwrap().len();
    println!(
        "{records} records, {} bytes each, written in {:.1} s",
        size / records,
        begun.elapsed().as_secs_f64()
    );

    let (begun, processor) = (Instant::now(), processor_seconds());
    let report = report::read(&[path], None).unwrap();
    let took = begun.elapsed().as_secs_f64();
    let used = processor_seconds() - processor;
    let text = report.to_text(100);
    let html = report.to_html();
    assert!(report.chains_hold());
    println!(
        "read in {took:.1} s, {:.1} s of them on a processor, {:.2} µs a record; {} bytes of text, {} of HTML; {}",
        used,
        used / records as f64 * 1e6,
        text.len(),
        html.len(),
        peak_memory()
    );
}

fn generate(path: &Path, records: u64) {
    let mut file = BufWriter::with_capacity(1 << 20, File::create(path).unwrap());
    let mut link = Link::FIRST;
    let mut line = Vec::new();
    for number in 0..records {
        line.clear();
        let (second, micros) = (number / PACE, number % PACE * (1_000_000 / PACE));
        let device = number % DEVICES;
        let lap = number / DEVICES;
        write!(
            line,
            "{{\"ts\":\"2026-11-29T{:02}:{:02}:{:02}.{micros:06}Z\",",
            10 + second / 3600,
            second / 60 % 60,
            second % 60
        )
        .unwrap();
        // Each lap of the devices lets one in twenty in.
        if device % 20 == lap % 20 {
            write!(
                line,
                "\"event\":\"attempt\",\"conn\":{number},\"source\":\"10.{}.{}.{}:54321\",\"client_id\":\"sensor-{device:06}\",\"protocol\":\"3.1.1\",\"clean\":true,\"lane\":\"default\",\"tls\":\"1.3 full\",\"decision\":\"admitted\",\"took_ms\":2004,\"waited_ms\":1500,\"server\":\"127.0.0.1:1883\",\"connack\":0,\"connack_ms\":12.3",
                device >> 16,
                device >> 8 & 255,
                device & 255
            )
            .unwrap();
        } else {
            write!(
                line,
                "\"event\":\"attempt\",\"conn\":{number},\"source\":\"10.{}.{}.{}:54321\",\"client_id\":\"sensor-{device:06}\",\"protocol\":\"5\",\"clean\":true,\"lane\":\"default\",\"tls\":\"1.3 resumed\",\"decision\":\"refused\",\"reason\":\"hold-full\",\"took_ms\":12",
                device >> 16,
                device >> 8 & 255,
                device & 255
            )
            .unwrap();
        }
        write!(line, ",\"prev\":\"{link}\"}}").unwrap();
        link = Link::of(&line);
        line.push(b'\n');
        file.write_all(&line).unwrap();
    }
    file.flush().unwrap();
}

/// User and system, of `/proc/self/stat` (fields 14 and 15 of proc(5), in hundredths).
fn processor_seconds() -> f64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat
        .rsplit_once(')')
        .map_or("", |(_, fields)| fields)
        .split_whitespace();
    fields
        .skip(11)
        .take(2)
        .filter_map(|field| field.parse::<f64>().ok())
        .sum::<f64>()
        / 100.0
}

fn peak_memory() -> String {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status
        .lines()
        .find(|line| line.starts_with("VmHWM:"))
        .unwrap_or("VmHWM: unknown");
    format!("most memory {}", peak.trim_start_matches("VmHWM:").trim())
}
