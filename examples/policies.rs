//! Prints the table of policies in `docs/devices.md`: what 10,000 devices do that lose a broker together.
//!
//! ```text
//! cargo run --example policies
//! ```
#![allow(clippy::print_stdout)]

use std::time::Duration;

use seawall::reconnect::{Backoff, Policy, Schedule, ScheduleError, from_seed};

const DEVICES: usize = 10_000;
const BASE: Duration = Duration::from_secs(5);
const CAP: Duration = Duration::from_mins(10);
/// How long nobody answers.
const OUTAGE: Duration = Duration::from_mins(5);
/// Long enough for two caps after the outage.
const WATCHED: Duration = Duration::from_mins(25);

fn main() -> Result<(), ScheduleError> {
    print!("{}", table()?);
    Ok(())
}

/// Markdown.
pub fn table() -> Result<String, ScheduleError> {
    let mut table = String::from(
        "| policy | delays | attempts a device in the outage | most CONNECTs in a second of it | after it: busiest second | half have knocked after | all after |\n\
         |---|---|---|---|---|---|---|\n",
    );
    for policy in Policy::ALL {
        let schedule = match policy {
            Policy::Fixed => Schedule::new(policy, BASE, 1.0, BASE)?,
            _ => Schedule::new(policy, BASE, 2.0, CAP)?,
        };
        table.push_str(&row(policy, &schedule));
    }
    Ok(table)
}

fn row(policy: Policy, schedule: &Schedule) -> String {
    let mut during = vec![0_usize; seconds(OUTAGE)];
    let mut after = vec![0_usize; seconds(WATCHED)];
    let mut first = Vec::with_capacity(DEVICES);
    for device in 0..DEVICES {
        let mut random = from_seed(1, &format!("device-{device}"));
        let mut backoff = Backoff::new();
        let mut now = Duration::ZERO;
        loop {
            now += backoff.next(schedule, &mut random);
            let Some(since) = now.checked_sub(OUTAGE) else {
                count(&mut during, now);
                continue;
            };
            count(&mut after, since);
            first.push(since);
            break;
        }
    }
    first.sort();
    let at = |share: usize| {
        first
            .get((DEVICES * share / 100).min(DEVICES - 1))
            .map_or(0, Duration::as_secs)
    };
    let attempts = during.iter().sum::<usize>() as f64 / DEVICES as f64;
    format!(
        "| {policy} | {} | {attempts:.1} | {} | {} | {} s | {} s |\n",
        delays(policy),
        during.iter().max().unwrap_or(&0),
        after.iter().max().unwrap_or(&0),
        at(50),
        at(100)
    )
}

fn count(seconds: &mut [usize], moment: Duration) {
    if let Some(second) = usize::try_from(moment.as_secs())
        .ok()
        .and_then(|second| seconds.get_mut(second))
    {
        *second += 1;
    }
}

fn seconds(span: Duration) -> usize {
    usize::try_from(span.as_secs()).unwrap_or(usize::MAX)
}

const fn delays(policy: Policy) -> &'static str {
    match policy {
        Policy::Fixed => "5 s",
        Policy::Exponential => "c",
        Policy::Proportional => "c ± 10 %",
        Policy::FullJitter => "0 … c",
        Policy::EqualJitter | Policy::Slot => "c/2 … c",
        Policy::Decorrelated => "5 s … 3 × the one before",
    }
}
