//! The storm of the demo, act by act: fill, calm, no tower, storm.

use std::io::{self, Write};
use std::num::NonZero;
use std::thread::available_parallelism;
use std::time::Duration;

use rustix::process::setpriority_process;
use rustix::thread::gettid;
use tokio::runtime::{Handle, Runtime};
use tokio::time::sleep;

use super::{CAPACITY, DemoError, MAX_WAIT, Options, PAIRS};
use crate::admission;
use crate::app::Running;
use crate::fleet::broker::{Behaviour, Broker};
use crate::fleet::bystander::Bystanders;
use crate::fleet::certificates::Certificates;
use crate::fleet::client::Target;
use crate::fleet::live::Live;
use crate::fleet::report::Report;
use crate::fleet::storm::{Fleet, Plan};
use crate::reconnect::{Policy, Schedule, ScheduleError};

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

/// How long the bystanders are watched before the storm, and how long the tower is away.
const CALM: Duration = Duration::from_secs(3);
const OUTAGE: Duration = Duration::from_secs(4);
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

/// The fleet after its storm, connected until this is dropped.
pub(super) struct Afterwards {
    _fleet: Fleet,
    _threads: DeviceThreads,
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
        writeln!(out, "  admin   http://{}/metrics", self.proxy.admin())?;
        writeln!(
            out,
            "  join    mosquitto_sub --cafile {} -h {} -p {} -t '#' -v",
            self.certificates.ca.display(),
            self.target.address.ip(),
            self.target.address.port()
        )?;
        out.flush()
    }

    pub(super) async fn storm(&self, out: &mut impl Write) -> Result<(Report, Afterwards), DemoError> {
        self.be_generous();
        let bystanders = Bystanders::start(&self.target, PAIRS, PUBLISH_PAUSE).await?;
        let threads = DeviceThreads::start()?;
        let fleet = Fleet::start(&self.plan()?, &threads.handle);
        let mut live = Live::new(out, &fleet, &bystanders, self.proxy.door(), self.devices);

        if live
            .until("fill", fleet.all_connected(), FILL_LIMIT)
            .await?
            .is_none()
        {
            let connected = fleet.figures().connected;
            return Err(DemoError::NotFilled {
                connected,
                devices: self.devices,
            });
        }
        self.be_what_is_on_trial();
        bystanders.take_phase();
        live.until("calm", sleep(CALM), CALM * 2).await?;
        let calm = bystanders.take_phase();

        let before = (fleet.figures(), self.broker.as_ref().map(Broker::figures));
        fleet.lose_tower();
        live.until("no tower", sleep(OUTAGE), OUTAGE * 2).await?;
        fleet.restore_tower();
        let ideal = self.ideal();
        live.until(
            "storm",
            fleet.all_connected(),
            ideal * PATIENCE_WITH_FLEET + GRACE,
        )
        .await?;

        let (storm, messages) = bystanders.stop().await;
        let seen = self.broker.as_ref().map(Broker::figures);
        let report = Report {
            devices: self.devices,
            ideal,
            returns: fleet.returns(),
            devices_counted: fleet.figures().since(&before.0),
            refusals: fleet.refusals(),
            broker: seen.zip(before.1).map(|(seen, before)| seen.since(&before)),
            calm,
            storm,
            messages,
        };
        Ok((
            report,
            Afterwards {
                _fleet: fleet,
                _threads: threads,
            },
        ))
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

    fn plan(&self) -> Result<Plan, ScheduleError> {
        let policy = self.options.policy;
        let schedule = match policy {
            Policy::Fixed => Schedule::new(policy, FIXED_PAUSE, 1.0, FIXED_PAUSE)?,
            _ => Schedule::new(policy, FIRST_PAUSE, 2.0, LONGEST_PAUSE)?,
        };
        let target = self.target.clone();
        Ok(Plan {
            target,
            devices: self.devices,
            schedule,
            patience: PATIENCE,
            keep_alive: KEEP_ALIVE,
            seed: 1,
        })
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

/// Threads for the devices, at a low priority: the load must not take the time of what is on trial.
struct DeviceThreads {
    handle: Handle,
    runtime: Option<Runtime>,
}

/// Enough to lose every contest, as a batch job does.
const NICE: i32 = 10;

impl DeviceThreads {
    fn start() -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(available_parallelism().map_or(1, NonZero::get))
            .thread_name("devices")
            .on_thread_start(|| {
                // Where it is not allowed the demo is only less exact.
                let _ = setpriority_process(Some(gettid()), NICE);
            })
            .enable_all()
            .build()?;
        Ok(Self {
            handle: runtime.handle().clone(),
            runtime: Some(runtime),
        })
    }
}

impl Drop for DeviceThreads {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Waiting for threads is not allowed where futures run.
            runtime.shutdown_background();
        }
    }
}
