//! A pattern put into action, act by act.

use std::io::{self, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use tokio::sync::oneshot;
use tokio::time::sleep;

use super::course::Course;
use super::crew::Event;
use super::live::{Live, Waited};
use super::pattern::Pattern;
use crate::fleet::bystander::{Bystanders, Latency};
use crate::fleet::swarm::Counts;
use crate::telemetry::wall_clock;

/// Between two looks at what is waited for: well below what a report tells apart.
const LOOK: Duration = Duration::from_millis(10);
/// A device notices the end of its connection by then, after the command that restarts the broker has ended.
const NOTICE: Duration = Duration::from_secs(1);

/// A storm in the making.
pub(in crate::fleet) struct Drill<'a, W> {
    pub(in crate::fleet) live: Live<'a, W>,
    pub(super) pattern: &'a Pattern,
    pub(super) devices: usize,
    /// Devices in the groups that are hit.
    pub(super) hit: usize,
    pub(super) notes: Notes,
}

/// What is known of its course.
#[derive(Debug, Default)]
pub(super) struct Notes {
    pub(super) is_interrupted: bool,
    pub(super) calm: Latency,
    /// Wall clock of the blow, and of the first moment at which somebody could come back.
    pub(super) blow: Option<SystemTime>,
    pub(super) open: Option<SystemTime>,
    /// The blow, in seconds since the beginning.
    pub(super) blow_s: f64,
    /// What was counted before.
    pub(super) before: Counts,
    pub(super) command_failed: Option<String>,
}

impl<'a, W: Write> Drill<'a, W> {
    pub(in crate::fleet) fn new(live: Live<'a, W>, pattern: &'a Pattern, devices: usize, hit: usize) -> Self {
        Self {
            live,
            pattern,
            devices,
            hit,
            notes: Notes::default(),
        }
    }

    /// Waits until all devices are connected. `TooLate`: they are not within `limit`.
    pub(in crate::fleet) async fn fill(&mut self, limit: Duration) -> io::Result<Waited<()>> {
        let (crew, devices) = (self.live.crew, self.devices);
        let waited = self
            .live
            .until("fill", reached(|| crew.counts().connected >= devices), limit)
            .await?;
        self.notes.is_interrupted |= matches!(waited, Waited::Interrupted);
        Ok(waited)
    }

    /// Watches the bystanders while nothing happens.
    pub(in crate::fleet) async fn calm(&mut self, span: Duration) -> io::Result<()> {
        self.live.bystanders.map(Bystanders::take_phase);
        self.pass("calm", span).await?;
        self.notes.calm = self
            .live
            .bystanders
            .map(Bystanders::take_phase)
            .unwrap_or_default();
        Ok(())
    }

    /// The blow, and the return of all that it hit, at most for `limit`.
    pub(in crate::fleet) async fn strike(&mut self, limit: Duration) -> io::Result<()> {
        self.notes.before = self.live.crew.counts();
        self.notes.blow = Some(wall_clock());
        self.notes.blow_s = self.live.elapsed().as_secs_f64();
        match self.pattern.clone() {
            Pattern::Cold { .. } => self.happen(Event::Restore(0))?,
            Pattern::Tower { outage, .. } => {
                self.happen(Event::Lose(0))?;
                self.pass("no tower", outage).await?;
                self.happen(Event::Restore(0))?;
            }
            Pattern::Restart { command: None } => self.happen(Event::Cut(0))?,
            Pattern::Restart {
                command: Some(command),
            } => return self.restart(&command, limit).await,
            Pattern::Rolling { parts, every, outage } => self.roll(parts, every, outage).await?,
        }
        let (crew, hit) = (self.live.crew, self.hit);
        self.come_back(reached(|| crew.counts().returned >= hit), limit)
            .await
    }

    /// One part after the other; parts may overlap where an outage is longer than the pause between them.
    async fn roll(&mut self, parts: u32, every: Duration, outage: Duration) -> io::Result<()> {
        let mut events: Vec<(Duration, Event)> = (0..parts)
            .zip(0_usize..)
            .flat_map(|(part, group)| {
                let from = every * part;
                [(from, Event::Lose(group)), (from + outage, Event::Restore(group))]
            })
            .collect();
        events.sort_by_key(|(at, _)| *at);
        let mut now = Duration::ZERO;
        for (at, event) in events {
            self.pass("rolling", at.saturating_sub(now)).await?;
            now = at;
            self.happen(event)?;
        }
        Ok(())
    }

    async fn restart(&mut self, command: &str, limit: Duration) -> io::Result<()> {
        self.happen(Event::Watch(0))?;
        let (done, ended) = oneshot::channel();
        let mut child = Command::new("/bin/sh")
            .args(["-c", command])
            .stdin(Stdio::null())
            .spawn()?;
        std::thread::Builder::new()
            .name("restart".into())
            .spawn(move || {
                // Nobody waits for it any more after an interrupt.
                let _ = done.send(child.wait());
            })?;
        let (crew, devices) = (self.live.crew, self.devices);
        let waited = self
            .live
            .until(
                "restart",
                async {
                    let status = ended.await;
                    sleep(NOTICE).await;
                    status
                },
                limit,
            )
            .await?;
        self.notes.is_interrupted |= matches!(waited, Waited::Interrupted);
        if let Waited::Came(Ok(Ok(status))) = waited
            && !status.success()
        {
            self.notes.command_failed = Some(format!("`{command}` ended with {status}"));
        }
        self.come_back(reached(|| crew.counts().connected >= devices), limit)
            .await?;
        let counts = crew.counts();
        self.hit = counts.returned + self.devices.saturating_sub(counts.connected);
        Ok(())
    }

    /// Ends devices in other processes, and says how it went.
    pub(in crate::fleet) async fn finish(self) -> io::Result<Course> {
        let blow = Duration::try_from_secs_f64(self.notes.blow_s).unwrap_or_default();
        let elapsed = self.live.elapsed().saturating_sub(blow);
        let (counts, returns) = self.live.crew.finish().await?;
        let mut seconds = self.live.seconds;
        if let Some(last) = seconds.last_mut() {
            last.generator = last.generator.with(self.live.crew.effort());
        }
        Ok(Course {
            notes: self.notes,
            hit: self.hit,
            elapsed,
            counts,
            returns,
            seconds,
            processes: self.live.crew.processes(),
        })
    }

    async fn come_back(&mut self, all: impl Future<Output = ()>, limit: Duration) -> io::Result<()> {
        if self.notes.is_interrupted {
            return Ok(());
        }
        let waited = self.live.until("storm", all, limit).await?;
        self.notes.is_interrupted |= matches!(waited, Waited::Interrupted);
        // What has happened since the last whole second.
        self.live.second("storm")
    }

    async fn pass(&mut self, phase: &'static str, span: Duration) -> io::Result<()> {
        if !self.notes.is_interrupted {
            let waited = self.live.until(phase, sleep(span), span * 2).await?;
            self.notes.is_interrupted |= matches!(waited, Waited::Interrupted);
        }
        Ok(())
    }

    fn happen(&mut self, event: Event) -> io::Result<()> {
        if self.notes.is_interrupted {
            return Ok(());
        }
        if !matches!(event, Event::Lose(_)) {
            self.notes.open.get_or_insert_with(wall_clock);
        }
        self.live.crew.tell(event)
    }
}

async fn reached(is_there: impl Fn() -> bool) {
    while !is_there() {
        sleep(LOOK).await;
    }
}
