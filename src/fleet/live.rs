//! The live view: a line a second.

use std::io::{self, Write};
use std::time::Duration;

use tokio::time::{Instant, Interval, MissedTickBehavior, interval, timeout_at};

use super::bystander::{Bystanders, Latency};
use super::report::milliseconds;
use super::storm::{Figures, Fleet};
use crate::door::Door;

/// The column titles are repeated after so many lines: a screen's worth.
const TITLES_EVERY: u32 = 25;

/// Writes a line a second while something is waited for.
pub(super) struct Live<'a, W> {
    out: &'a mut W,
    fleet: &'a Fleet,
    bystanders: &'a Bystanders,
    door: &'a Door,
    devices: usize,
    begun: Instant,
    ticks: Interval,
    before: Figures,
    lines: u32,
}

impl<'a, W: Write> Live<'a, W> {
    pub(super) fn new(
        out: &'a mut W,
        fleet: &'a Fleet,
        bystanders: &'a Bystanders,
        door: &'a Door,
        devices: usize,
    ) -> Self {
        let mut ticks = interval(Duration::from_secs(1));
        // A late line is late; two in one second would read as two seconds.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks.reset();
        let before = fleet.figures();
        Self {
            out,
            fleet,
            bystanders,
            door,
            devices,
            begun: Instant::now(),
            ticks,
            before,
            lines: 0,
        }
    }

    /// Waits for `event`; `None`: it did not come within `limit`.
    pub(super) async fn until<T>(
        &mut self,
        phase: &str,
        event: impl Future<Output = T>,
        limit: Duration,
    ) -> io::Result<Option<T>> {
        let mut event = std::pin::pin!(timeout_at(Instant::now() + limit, event));
        loop {
            tokio::select! {
                outcome = &mut event => return Ok(outcome.ok()),
                _ = self.ticks.tick() => self.line(phase)?,
            }
        }
    }

    fn line(&mut self, phase: &str) -> io::Result<()> {
        if self.lines.is_multiple_of(TITLES_EVERY) {
            writeln!(
                self.out,
                "\n{:>4}  {:<9}{:>9}{:>9}{:>9}{:>9}{:>6}  {:>13}  bystanders p50 / p99",
                "s", "", "arrivals", "admitted", "refused", "gave up", "held", "connected"
            )?;
        }
        self.lines += 1;
        let now = self.fleet.figures();
        let Figures {
            arrivals,
            admitted,
            refused,
            broken: _,
            gave_up,
            connected,
        } = now.since(&self.before);
        self.before = now;
        let Latency { p50_us, p99_us, .. } = self.bystanders.take_second();
        writeln!(
            self.out,
            "{:>4}  {phase:<9}{arrivals:>9}{admitted:>9}{refused:>9}{gave_up:>9}{:>6}  {:>13}  {:>8} / {:>8}",
            self.begun.elapsed().as_secs_f64().round(),
            self.door.snapshot().held,
            format!("{connected}/{}", self.devices),
            milliseconds(p50_us),
            milliseconds(p99_us),
        )?;
        self.out.flush()
    }
}
