//! The live view, a line a second, and the record that the report is made of.

use std::io::{self, Write};
use std::time::Duration;

use serde::Serialize;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval, timeout_at};

use super::crew::Crew;
use super::effort::{Effort, Machine};
use super::report::milliseconds;
use crate::door::Door;
use crate::fleet::bystander::{Bystanders, Latency};
use crate::fleet::swarm::Counts;

/// The column titles are repeated after so many lines: a screen's worth.
const TITLES_EVERY: u32 = 25;
/// Cells of the progress bar.
const BAR: usize = 20;

/// A second of a storm.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Second {
    /// Its end, in seconds since the beginning.
    pub at_s: f64,
    /// What was going on.
    pub phase: &'static str,
    /// Attempts that reached for the network.
    pub arrivals: u64,
    /// CONNACK 0.
    pub admitted: u64,
    /// CONNACK with another code.
    pub refused: u64,
    /// Given up after the device's patience.
    pub gave_up: u64,
    /// Ended in another way.
    pub broken: u64,
    /// Connections that the other side ended.
    pub dropped: u64,
    /// Devices that came back.
    pub returned: usize,
    /// Devices connected at its end.
    pub connected: usize,
    /// The bystanders' latencies; absent without bystanders.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bystanders: Option<Latency>,
    /// What the generator did.
    pub generator: Effort,
    /// Share of all the machine's processors that worked, 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine_busy: Option<f64>,
}

/// What became of something that was waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::fleet) enum Waited<T> {
    Came(T),
    TooLate,
    /// By ctrl-C, or a service manager.
    Interrupted,
}

/// Writes a line a second while something is waited for.
pub(in crate::fleet) struct Live<'a, W> {
    out: &'a mut W,
    pub(super) crew: &'a Crew,
    pub(super) bystanders: Option<&'a Bystanders>,
    /// Shown where the proxy is in this process.
    door: Option<&'a Door>,
    devices: usize,
    begun: Instant,
    ticks: Interval,
    before: Counts,
    lines: u32,
    machine: Machine,
    interrupt: Signal,
    terminate: Signal,
    pub(super) seconds: Vec<Second>,
}

impl<'a, W: Write> Live<'a, W> {
    pub(in crate::fleet) fn new(
        out: &'a mut W,
        crew: &'a Crew,
        bystanders: Option<&'a Bystanders>,
        door: Option<&'a Door>,
        devices: usize,
    ) -> io::Result<Self> {
        let mut ticks = interval(Duration::from_secs(1));
        // A late line is late; two in one second would read as two seconds.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks.reset();
        let mut machine = Machine::default();
        machine.busy();
        crew.effort();
        Ok(Self {
            out,
            crew,
            bystanders,
            door,
            devices,
            begun: Instant::now(),
            ticks,
            before: crew.counts(),
            lines: 0,
            machine,
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            seconds: Vec::new(),
        })
    }

    /// Waits for `event`, at most for `limit`.
    pub(in crate::fleet) async fn until<T>(
        &mut self,
        phase: &'static str,
        event: impl Future<Output = T>,
        limit: Duration,
    ) -> io::Result<Waited<T>> {
        let mut event = std::pin::pin!(timeout_at(Instant::now() + limit, event));
        loop {
            tokio::select! {
                outcome = &mut event => return Ok(outcome.map_or(Waited::TooLate, Waited::Came)),
                _ = self.interrupt.recv() => return Ok(Waited::Interrupted),
                _ = self.terminate.recv() => return Ok(Waited::Interrupted),
                _ = self.ticks.tick() => {
                    self.crew.check()?;
                    self.second(phase)?;
                }
            }
        }
    }

    pub(super) fn counts(&self) -> Counts {
        self.crew.counts()
    }

    pub(super) fn elapsed(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Takes down what has happened since the last line, and writes it.
    pub(super) fn second(&mut self, phase: &'static str) -> io::Result<()> {
        let now = self.crew.counts();
        let counts = now.since(&self.before);
        self.before = now;
        let second = Second {
            at_s: self.begun.elapsed().as_secs_f64(),
            phase,
            arrivals: counts.arrivals,
            admitted: counts.admitted,
            refused: counts.refused_in_all(),
            gave_up: counts.gave_up(),
            broken: counts.broken(),
            dropped: counts.dropped,
            returned: counts.returned,
            connected: counts.connected,
            bystanders: self.bystanders.map(Bystanders::take_second),
            generator: self.crew.effort(),
            machine_busy: self.machine.busy(),
        };
        self.write(&second)?;
        self.seconds.push(second);
        Ok(())
    }

    fn write(&mut self, second: &Second) -> io::Result<()> {
        let held = |text: String| if self.door.is_some() { text } else { String::new() };
        let watched = self.bystanders.is_some();
        if self.lines.is_multiple_of(TITLES_EVERY) {
            writeln!(
                self.out,
                "\n{:>4}  {:<9}{:>9}{:>9}{:>9}{:>9}{:>9}{}  {:>13}  {:BAR$}{}",
                "s",
                "",
                "arrivals",
                "admitted",
                "refused",
                "gave up",
                "broken",
                held(format!("{:>6}", "held")),
                "connected",
                "",
                if watched { "  bystanders p50 / p99" } else { "" }
            )?;
        }
        self.lines += 1;
        let held_now = self.door.map_or(0, |door| door.snapshot().held);
        let latency = second.bystanders.map_or_else(String::new, |latency| {
            format!(
                "  {:>8} / {:>8}",
                milliseconds(latency.p50_us),
                milliseconds(latency.p99_us)
            )
        });
        writeln!(
            self.out,
            "{:>4}  {:<9}{:>9}{:>9}{:>9}{:>9}{:>9}{}  {:>13}  {}{latency}",
            second.at_s.round(),
            second.phase,
            second.arrivals,
            second.admitted,
            second.refused,
            second.gave_up,
            second.broken,
            held(format!("{held_now:>6}")),
            format!("{}/{}", second.connected, self.devices),
            bar(second.connected, self.devices),
        )?;
        self.out.flush()
    }
}

/// A bar of [`BAR`] cells.
fn bar(part: usize, whole: usize) -> String {
    let cells = (part * BAR).checked_div(whole).unwrap_or(0).min(BAR);
    format!("{}{}", "█".repeat(cells), "·".repeat(BAR - cells))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_full_only_when_all_are_there() {
        for (part, whole, cells) in [
            (0, 0, 0),
            (0, 10, 0),
            (5, 10, 10),
            (1999, 2000, 19),
            (10, 10, 20),
            (11, 10, 20),
        ] {
            let bar = bar(part, whole);
            assert_eq!(
                (bar.matches('█').count(), bar.chars().count()),
                (cells, BAR),
                "{part}/{whole}"
            );
        }
    }
}
