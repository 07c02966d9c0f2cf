//! The storm of the demo, act by act: fill, calm, no tower, storm.

use std::io::{self, Write};
use std::time::Duration;

use super::{CAPACITY, DemoError, MAX_WAIT, Options, PAIRS};
use crate::admission;
use crate::app::Running;
use crate::fleet::broker::{Behaviour, Broker};
use crate::fleet::bystander::{self, Bystanders};
use crate::fleet::certificates::Certificates;
use crate::fleet::client::Target;
use crate::fleet::mix::{Mix, Pauses};
use crate::fleet::population::{Population, Protocol, Sources};
use crate::fleet::storm::{About, Crew, Drill, Live, Pattern, Report, Threads, Waited, cores};
use crate::fleet::swarm::Fleet;

/// As the impatient half of the client libraries: rumqttc and paho's Python.
const PATIENCE: Duration = Duration::from_secs(5);
/// The fixed timer of many devices; the worst there is.
const FIXED_PAUSE: Duration = Duration::from_secs(5);
/// Base of the other policies. The cap is low so that the demo ends within about a minute; a fleet in the field needs more.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// Seconds.
const KEEP_ALIVE: u16 = 60;

/// How often each bystander publishes.
const PUBLISH_PAUSE: Duration = Duration::from_millis(100);

/// How long the bystanders are watched before the storm.
const CALM: Duration = Duration::from_secs(3);
/// The worst case: everybody, and for less than a device's pause.
const PATTERN: Pattern = Pattern::Tower {
    share: 100,
    outage: Duration::from_secs(4),
};
/// Longest time for the first connections.
pub(super) const FILL_LIMIT: Duration = Duration::from_mins(2);
/// The fleet has failed when it is not back after so many times the ideal, and this on top for its own pauses.
const PATIENCE_WITH_FLEET: u32 = 4;
const GRACE: Duration = Duration::from_secs(30);

/// Everything that the storm happens to.
pub(super) struct Stage<'a> {
    pub(super) options: &'a Options,
    pub(super) devices: usize,
    pub(super) descriptors: u64,
    pub(super) certificates: Certificates,
    pub(super) broker: Option<Broker>,
    pub(super) proxy: Running,
    pub(super) target: Target,
    pub(super) storm_rules: admission::Settings,
}

impl Stage<'_> {
    pub(super) fn introduce(&self, out: &mut impl Write) -> io::Result<()> {
        let Self {
            options,
            devices,
            storm_rules,
            ..
        } = self;
        let admission::Settings {
            rate, max_in_flight, ..
        } = storm_rules;
        writeln!(
            out,
            "Seawall demo: {devices} devices behind one tower, policy {}",
            options.policy
        )?;
        if *devices < options.devices {
            let Self { descriptors, .. } = self;
            writeln!(
                out,
                "  fitted to the limit of {descriptors} descriptors; {} were wanted",
                options.devices
            )?;
        }
        writeln!(
            out,
            "  proxy   {} (TLS), rate {rate}/s, {max_in_flight} in flight, held for up to {} s",
            self.target.address,
            MAX_WAIT.as_secs()
        )?;
        match (&self.broker, &options.upstream) {
            (Some(broker), _) => writeln!(
                out,
                "  broker  {} (embedded), its authentication serves {CAPACITY} CONNECTs a second",
                broker.address()
            )?,
            (None, upstream) => writeln!(out, "  broker  {}", upstream.as_deref().unwrap_or_default())?,
        }
        writeln!(
            out,
            "  admin   http://{}/ (the storm in a browser), /metrics, /status",
            self.proxy.admin()
        )?;
        writeln!(
            out,
            "  join    mosquitto_sub --cafile {} -h {} -p {} -t '#' -v",
            self.certificates.ca.display(),
            self.target.address.ip(),
            self.target.address.port()
        )?;
        out.flush()
    }

    pub(super) async fn storm(&self, out: &mut impl Write) -> Result<(Report, Crew), DemoError> {
        self.be_generous();
        let bystanders = Bystanders::start(&self.target, bystanders()).await?;
        let population = self.population();
        let threads = Threads::start(cores(), NICE, false)?;
        let fleet = Fleet::start(&population, threads.handles())?;
        let crew = Crew::Here { fleet, threads };
        let live = Live::new(
            out,
            &crew,
            Some(&bystanders),
            Some(self.proxy.door()),
            self.devices,
        )?;
        let mut drill = Drill::new(live, &PATTERN, self.devices, self.devices);

        let filled = drill.fill(FILL_LIMIT).await?;
        if filled == Waited::TooLate {
            return Err(DemoError::NotFilled {
                connected: crew.counts().connected,
                devices: self.devices,
            });
        }
        self.be_what_is_on_trial();
        let before = self.broker.as_ref().map(Broker::figures);
        if filled == Waited::Came(()) {
            drill.calm(CALM).await?;
            drill.strike(self.ideal() * PATIENCE_WITH_FLEET + GRACE).await?;
        }
        let course = drill.finish().await?;
        let watched = course.watched(PAIRS, bystanders.stop().await);
        let seen = self.broker.as_ref().map(Broker::figures);
        let report = course.report(About {
            target: self.target.address.to_string(),
            pattern: PATTERN.to_string(),
            mix: population.mix.to_string(),
            devices: self.devices,
            ideal: Some(self.ideal()),
            threads: cores(),
            watched: Some(watched),
            broker: seen.zip(before).map(|(seen, before)| seen.since(&before)),
        });
        Ok((report, crew))
    }

    /// The first connections are no storm: nothing holds them up but the handshakes.
    fn be_generous(&self) {
        let rules = admission::Settings {
            rate: 1e6,
            burst: 1e6,
            ..self.storm_rules.clone()
        };
        self.proxy.door().reconfigure(rules);
    }

    fn be_what_is_on_trial(&self) {
        if let Some(broker) = &self.broker {
            broker.behave(Behaviour::accepting(CAPACITY));
        }
        self.proxy.door().reconfigure(self.storm_rules.clone());
    }

    fn population(&self) -> Population {
        Population {
            target: self.target.clone(),
            numbers: 0..self.devices,
            prefix: "device-".to_owned(),
            mix: Mix::all(self.options.policy),
            pauses: Pauses {
                fixed: FIXED_PAUSE,
                base: FIRST_PAUSE,
                multiplier: 2.0,
                cap: LONGEST_PAUSE,
            },
            patience: PATIENCE,
            keep_alive: KEEP_ALIVE,
            protocol: Protocol::Both,
            persistent: 0,
            credentials: None,
            resumes: true,
            heeds_retry_after: false,
            sources: Sources::System,
            groups: PATTERN.groups(),
            boot: PATTERN.boot(),
            seed: 1,
        }
    }

    fn ideal(&self) -> Duration {
        let rate = self.storm_rules.rate;
        let served = if self.broker.is_some() {
            rate.min(CAPACITY)
        } else {
            rate
        };
        Duration::try_from_secs_f64(self.devices as f64 / served).unwrap_or(Duration::MAX / 8)
    }
}

/// The load must not take the time of what is on trial: devices lose every contest, as a batch job does.
const NICE: i32 = 10;

fn bystanders() -> bystander::Settings {
    bystander::Settings {
        pairs: PAIRS,
        pause: PUBLISH_PAUSE,
        prefix: String::new(),
        credentials: None,
    }
}
