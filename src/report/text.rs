//! The report for a terminal.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::html::{arrivals, attempts_chart, back_chart, times_back};
use super::log::Log;
use super::summary::{Capacity, Row, Share, Summary, Worst};
use super::{Report, View};
use crate::chart::{Unit, grouped};

/// Sentences about pauses; the page has all.
const SHOWN_PATTERNS: usize = 12;

pub(super) fn write(report: &Report, width: usize) -> String {
    let mut out = String::new();
    for log in &report.logs {
        line(&mut out, &chain(log));
    }
    for (name, view) in report.views() {
        out.push('\n');
        write_view(&mut out, name, view, width);
    }
    out
}

/// A log in a sentence.
pub(super) fn chain(log: &Log) -> String {
    let files = if log.files == 1 {
        String::new()
    } else {
        format!(" in {} files", log.files)
    };
    let mut out = format!("{}: {} lines{files}, ", log.path.display(), grouped(log.lines));
    match (&log.first_break, log.unchained) {
        (Some(first), _) => {
            let _ = write!(
                out,
                "CHAIN BROKEN at {}, line {}: {}",
                first.file.display(),
                first.line,
                first.what
            );
            if log.breaks > 1 {
                let _ = write!(out, " ({} breaks in all)", grouped(log.breaks));
            }
        }
        (None, true) => out.push_str("a device's, without a chain"),
        (None, false) => {
            out.push_str("the chain holds");
            if !log.from_the_beginning {
                out.push_str("; it begins before the first line that is here");
            }
            if !log.end_checked {
                out.push_str("; without its .head a tail that was cut off would not show");
            }
        }
    }
    if let Some(cut) = &log.cut_off {
        let _ = write!(
            out,
            "; its last line is cut off (line {} of {}, {} bytes): the process was killed",
            cut.line,
            cut.file.display(),
            cut.bytes
        );
    }
    if log.unreadable > 0 {
        let _ = write!(out, "; {} lines are no records", grouped(log.unreadable));
    }
    out
}

/// What was seen in all, in a sentence.
pub(super) fn totals(view: &View) -> String {
    let mut out = format!(
        "{} to {}: {} attempts, {} connected, {} refused, {} shed; {} sessions ended",
        moment(view.from),
        moment(view.to),
        grouped(view.attempts),
        grouped(view.connected),
        grouped(view.refused.values().sum()),
        grouped(view.shed.values().sum()),
        grouped(view.ended)
    );
    if view.dropped > 0 {
        let _ = write!(
            out,
            "; {} records were lost, the figures are too low by so many",
            grouped(view.dropped)
        );
    }
    out
}

fn write_view(out: &mut String, name: &str, view: &View, width: usize) {
    let name = if name.is_empty() {
        String::new()
    } else {
        format!("{name}, ")
    };
    line(out, &format!("{name}{}", totals(view)));
    if view.storms.is_empty() {
        line(
            out,
            "No storm in it: nobody, or next to nobody, was turned away or kept waiting.",
        );
    }
    for (number, storm) in view.storms.iter().enumerate() {
        out.push('\n');
        write_storm(out, number + 1, storm, width);
    }
}

fn write_storm(out: &mut String, number: usize, storm: &Summary, width: usize) {
    line(
        out,
        &format!(
            "Storm {number}: began {}, {}",
            moment(storm.started),
            Unit::Seconds.show(storm.seconds)
        ),
    );
    for (label, words) in answers(storm) {
        row(out, label, &words);
    }
    out.push('\n');
    out.push_str(&arrivals(storm).text(width, 2));
    out.push_str(&back_chart(storm).text(width, 3));
    out.push_str(&times_back(storm, 10).text(width.min(80)));
    out.push_str(&attempts_chart(storm).text(width.min(80)));
    for (what, rows) in [
        ("lane", &storm.by_lane),
        ("protocol", &storm.by_protocol),
        ("source", &storm.by_source),
    ] {
        table(out, what, rows);
    }
    worst(out, "waited longest", &storm.waited_longest);
    worst(out, "hammered", &storm.hammered);
    line(out, "  pauses between attempts");
    for sentence in pauses(storm, SHOWN_PATTERNS) {
        line(out, &format!("    {sentence}"));
    }
}

/// The questions of the morning after, and their answers.
pub(super) fn answers(storm: &Summary) -> Vec<(&'static str, String)> {
    let mut rows = vec![("lost", lost(storm)), ("back", back(storm))];
    rows.push(("back after", shares(&storm.back_after)));
    let [p50, p99, most] = storm.attempts_each;
    rows.push((
        "attempts",
        format!(
            "{}: {} connected, {} refused, {} shed, {} otherwise; a client p50 {p50}, p99 {p99}, most {most}",
            grouped(storm.attempts),
            grouped(storm.connected),
            grouped(storm.refused_in_all() + storm.refused_by_broker.values().sum::<u64>()),
            grouped(storm.shed_in_all()),
            grouped(storm.failed.values().sum())
        ),
    ));
    for (label, counts) in [
        ("refused", &storm.refused),
        ("shed", &storm.shed),
        ("otherwise", &storm.failed),
    ] {
        if !counts.is_empty() {
            rows.push((label, by_count(counts)));
        }
    }
    if !storm.refused_by_broker.is_empty() {
        let codes = storm.refused_by_broker.iter();
        let codes: Vec<String> = codes
            .map(|(code, times)| format!("{code:#04x} {}", grouped(*times)))
            .collect();
        rows.push(("by the broker", codes.join(", ")));
    }
    rows.push(("capacity", capacity(storm.capacity.as_ref())));
    if storm.would_refuse > 0 {
        let words = format!(
            "{} admitted that would have been refused",
            grouped(storm.would_refuse)
        );
        rows.push(("dry run", words));
    }
    if storm.breakers_opened > 0 {
        rows.push((
            "breaker",
            format!("opened {} times", grouped(storm.breakers_opened)),
        ));
    }
    if storm.dropped > 0 {
        let words = format!(
            "{} records: these figures are too low by so many",
            grouped(storm.dropped)
        );
        rows.push(("not recorded", words));
    }
    if storm.untold > 0 {
        let words = format!(
            "{} attempts of clients past the first 3,000,000",
            grouped(storm.untold)
        );
        rows.push(("not told apart", words));
    }
    rows
}

fn lost(storm: &Summary) -> String {
    match (storm.lost_before, storm.lost_began) {
        (0, _) | (_, None) => format!("{} sessions ended during it", grouped(storm.lost_during)),
        (before, Some(began)) => format!(
            "{} sessions ended in the two minutes before, from {} on; {} during it",
            grouped(before),
            Unit::Clock.show(began),
            grouped(storm.lost_during)
        ),
    }
}

fn back(storm: &Summary) -> String {
    let out = storm.clients - storm.back;
    let missing = if out == 0 {
        String::new()
    } else {
        format!("; {} tried and were not back when the log ends", grouped(out))
    };
    format!(
        "{} of {} clients{missing}",
        grouped(storm.back),
        grouped(storm.clients)
    )
}

fn shares(shares: &[Share]) -> String {
    let share = |share: &Share| {
        let after = share
            .seconds
            .map_or("never".to_owned(), |seconds| format!("{seconds:.2} s"));
        format!("{} % {after}", share.hundredths)
    };
    shares.iter().map(share).collect::<Vec<_>>().join("   ")
}

fn capacity(capacity: Option<&Capacity>) -> String {
    let Some(Capacity {
        allowed,
        used,
        seconds,
    }) = capacity
    else {
        return "not known: the log tells no rate; give it with --capacity".to_owned();
    };
    format!(
        "{:.0} % used: {} CONNECTs were forwarded in the {} until 90 % were back, the rate allowed {}",
        *used as f64 / allowed.max(1.0) * 100.0,
        grouped(*used),
        Unit::Seconds.show(*seconds),
        grouped(allowed.round() as u64)
    )
}

fn by_count(counts: &BTreeMap<String, u64>) -> String {
    let mut sorted: Vec<_> = counts.iter().collect();
    sorted.sort_by(|a, b| b.1.cmp(a.1));
    let words: Vec<String> = sorted
        .into_iter()
        .map(|(word, times)| format!("{word} {}", grouped(*times)))
        .collect();
    words.join(", ")
}

/// Who has no jitter first; then the rest.
pub(super) fn pauses(storm: &Summary, most: usize) -> Vec<String> {
    let patterns = &storm.patterns;
    let ids = patterns.by_client_id.iter();
    let unjittered = ids.clone().filter(|pattern| pattern.is_unjittered());
    let jittered = ids.filter(|pattern| !pattern.is_unjittered());
    let mut out: Vec<String> = unjittered
        .chain(jittered)
        .take(most)
        .map(|pattern| pattern.sentence("of"))
        .collect();
    for (of, patterns) in [
        ("with protocol", &patterns.by_protocol),
        ("from", &patterns.by_source),
    ] {
        let unjittered = patterns.iter().filter(|pattern| pattern.is_unjittered());
        out.extend(unjittered.take(most / 3).map(|pattern| pattern.sentence(of)));
    }
    if patterns.unknown > 0 {
        out.push(format!(
            "{} with fewer than four attempts: too few to tell",
            grouped(patterns.unknown)
        ));
    }
    out
}

fn table(out: &mut String, what: &str, rows: &[Row]) {
    line(
        out,
        &format!(
            "  {:<24}{:>10}{:>10}{:>12}{:>12}{:>12}{:>12}",
            format!("by {what}"),
            "clients",
            "back",
            "attempts",
            "refused",
            "half back",
            "last back"
        ),
    );
    for row in rows {
        let after =
            |seconds: Option<f64>| seconds.map_or("–".to_owned(), |seconds| format!("{seconds:.2} s"));
        line(
            out,
            &format!(
                "    {:<22}{:>10}{:>10}{:>12}{:>12}{:>12}{:>12}",
                row.name,
                grouped(row.clients),
                grouped(row.back),
                grouped(row.attempts),
                grouped(row.refused),
                after(row.half_after),
                after(row.last_after)
            ),
        );
    }
}

fn worst(out: &mut String, what: &str, clients: &[Worst]) {
    line(out, &format!("  {what}"));
    for client in clients.iter().take(5) {
        line(
            out,
            &format!(
                "    {:<32} {:>10} attempts in {:>8.2} s, {}   {}",
                client.client,
                grouped(u64::from(client.attempts)),
                client.seconds,
                if client.is_back { "back" } else { "not back" },
                client.source
            ),
        );
    }
}

/// A date and a time, in UTC.
pub(super) fn moment(unix: f64) -> String {
    let nanoseconds = (unix * 1e3).round() as i128 * 1_000_000;
    let Ok(at) = time::OffsetDateTime::from_unix_timestamp_nanos(nanoseconds) else {
        return "an unknown time".to_owned();
    };
    format!(
        "{} {:02}:{:02}:{:02}.{:03} UTC",
        at.date(),
        at.hour(),
        at.minute(),
        at.second(),
        at.millisecond()
    )
}

fn row(out: &mut String, label: &str, words: &str) {
    line(out, &format!("  {label:<16} {words}"));
}

/// A client id may hold anything; a terminal must not be moved by it.
fn line(out: &mut String, text: &str) {
    out.extend(text.chars().map(|c| {
        if c.is_control() {
            char::REPLACEMENT_CHARACTER
        } else {
            c
        }
    }));
    out.push('\n');
}
