//! The minute after an outage: a fleet in front of a broker that can authenticate eighty a second.
//!
//! The clock judges here: what else the machine does meanwhile counts against Seawall. On a machine that others use, run
//! it in a session of its own (`setsid`) whose `/proc/self/autogroup` is -15: there `nice` counts within a session only.

mod adversity;
mod broker;
mod course;
mod fleet;
mod pairs;
mod plain_proxy;
mod watch;
mod wire;

use self::broker::{answered, broker_of_the_capacity};
use self::course::Course;
use self::fleet::Fleet;
use self::pairs::{Messages, Pairs};
use self::plain_proxy::plain_tls_proxy;
use self::watch::Watch;
use crate::rig::{Daemon, Mosquitto, Scene, long, report};
use seawall::reconnect::{Policy, Schedule};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

const DEVICES: usize = 2000;

/// In units of devices / capacity.
const TIME_LIMIT: f64 = 1.3;
/// Of the connected, the 99th percentile.
const LATENCY_LIMIT: Duration = Duration::from_millis(100);
/// Of the broker's time, while there is work for it.
const USED_AT_LEAST: f64 = 0.9;

/// Nothing is told about the broker: the defaults, which `configuration` widens for the other scenarios. Held for as long
/// as the devices wait, but for half a second in which they get through the handshake.
const FOLLOWING: [(&str, &str); 6] = [
    ("admission.adaptive.enabled", "true"),
    ("admission.rate", "200"),
    ("admission.burst", "200"),
    ("admission.max_in_flight", "100"),
    ("admission.max_held", "10000"),
    ("admission.max_wait", "\"4500ms\""),
];

#[test]
fn a_fleet_in_lockstep_comes_in_and_the_connected_do_not_notice() {
    let devices = if long() { 2000 } else { 1500 };
    let scene = Scene::alone();
    let runtime = fleets_runtime();
    let (broker, iterations) = runtime.block_on(broker_of_the_capacity(&scene));
    let daemon = Daemon::start(&scene, broker.address(), &FOLLOWING);
    let storm = runtime.block_on(storm(&daemon, &broker, devices, lockstep()));
    drop(daemon);
    report(&format!("through Seawall, following: {storm}"));
    drop(broker);
    storm.expect_all_in_within(TIME_LIMIT * storm.course.ideal());
    storm.expect_the_connected_well();

    // What it comes to without Seawall shows soon. How many come in differs from run to run; what it does to the connected
    // does not.
    let broker = Mosquitto::slow(&scene, iterations);
    let of_the_proxy = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let proxy = of_the_proxy.block_on(plain_tls_proxy(broker.address()));
    let messages = runtime.block_on(async {
        let pairs = Pairs::connect(proxy).await;
        let fleet = Fleet::start(proxy, devices, lockstep());
        let (inside, took) = fleet.gather(Duration::from_secs(10)).await;
        let messages = pairs.finish();
        report(&format!(
            "through a plain TLS proxy:  {inside} of {devices} devices in after {took:.1?}; pairs: {messages}"
        ));
        messages
    });
    assert!(
        messages.percentile(50.0) > Duration::from_secs(1),
        "the storm was none: it needs no Seawall"
    );
}

/// The same with the broker's capacity told, and without the law that follows it.
#[test]
fn a_fixed_rate_of_four_fifths_of_the_capacity_does_as_well() {
    if !long() {
        return;
    }
    let scene = Scene::alone();
    let runtime = fleets_runtime();
    let (broker, _) = runtime.block_on(broker_of_the_capacity(&scene));
    let rate = 0.8 * broker::CAPACITY;
    let text = rate.to_string();
    let mut settings = FOLLOWING;
    settings[0] = ("admission.adaptive.enabled", "false");
    settings[1] = ("admission.rate", &text);
    settings[3] = ("admission.max_in_flight", "2");
    let daemon = Daemon::start(&scene, broker.address(), &settings);
    let storm = runtime.block_on(storm(&daemon, &broker, DEVICES, lockstep()));
    report(&format!("through Seawall, {rate} a second: {storm}"));
    storm.expect_all_in_within(TIME_LIMIT * DEVICES as f64 / rate.min(storm.course.capacity()));
    storm.expect_the_connected_well();
}

/// Where the devices' own pauses bound the end, the broker is at work whenever they leave it any.
#[test]
fn whatever_the_pauses_the_brokers_capacity_is_used() {
    const BASE: Duration = Duration::from_secs(1);
    const CAP: Duration = Duration::from_mins(1);
    if !long() {
        return;
    }
    let scene = Scene::alone();
    let runtime = fleets_runtime();
    let (broker, _) = runtime.block_on(broker_of_the_capacity(&scene));
    let mut failures = Vec::new();
    for policy in [
        Policy::Exponential,
        Policy::Proportional,
        Policy::FullJitter,
        Policy::EqualJitter,
        Policy::Decorrelated,
    ] {
        let daemon = Daemon::start(&scene, broker.address(), &FOLLOWING);
        let schedule = Schedule::new(policy, BASE, 2.0, CAP).unwrap();
        let storm = runtime.block_on(storm(&daemon, &broker, DEVICES, schedule));
        let (used, stretches) = storm.course.least_used();
        report(&format!(
            "{policy}: {storm}; at least {:.0} % used in each of {stretches} times 5 s",
            used * 100.0
        ));
        if stretches == 0 || used < USED_AT_LEAST {
            failures.push(format!("{policy}: {used:.2} used"));
        }
        storm.expect_the_connected_well();
    }
    assert!(failures.is_empty(), "{failures:?}");
}

/// What the simplest of client libraries do: no back-off and no jitter.
fn lockstep() -> Schedule {
    const RETRY: Duration = Duration::from_secs(5);
    Schedule::new(Policy::Fixed, RETRY, 1.0, RETRY).unwrap()
}

/// In the field every device has a processor of its own; here the fleet gives way to those whom it storms. (Of the
/// process id 0 Linux takes the calling thread.)
fn fleets_runtime() -> Runtime {
    const NICER: i32 = 15;
    let give_way = || {
        let own = rustix::process::getpriority_process(None).unwrap();
        rustix::process::setpriority_process(None, own + NICER).unwrap();
    };
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .on_thread_start(give_way)
        .enable_all()
        .build()
        .unwrap()
}

/// How a storm went.
struct Storm {
    devices: usize,
    inside: usize,
    course: Course,
    messages: Messages,
}

/// All devices at once, until they are in or a minute is over, with connected pairs beside them.
async fn storm(daemon: &Daemon, broker: &Mosquitto, devices: usize, schedule: Schedule) -> Storm {
    const LIMIT: Duration = Duration::from_mins(1);
    let pairs = Pairs::connect(daemon.address()).await;
    let watch = Watch::start(daemon, broker);
    let before = answered(broker);
    let from = Instant::now();
    let fleet = Fleet::start(daemon.address(), devices, schedule);
    let (inside, took) = fleet.gather(LIMIT).await;
    let messages = pairs.finish();
    let course = Course {
        from,
        took,
        answered: answered(broker) - before,
        looks: watch.finish(),
        timeline: fleet.finish(),
    };
    Storm {
        devices,
        inside,
        course,
        messages,
    }
}

impl Storm {
    fn expect_all_in_within(&self, seconds: f64) {
        assert_eq!(self.inside, self.devices, "devices in");
        let took = self.course.took.as_secs_f64();
        assert!(took <= seconds, "in after {took:.1} s, not {seconds:.1} s");
    }

    fn expect_the_connected_well(&self) {
        assert_eq!(
            self.messages.received(),
            self.messages.sent,
            "messages of the connected"
        );
        let p99 = self.messages.percentile(99.0);
        assert!(p99 <= LATENCY_LIMIT, "p99 of the connected: {p99:.1?}");
    }
}

impl std::fmt::Display for Storm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let course = &self.course;
        write!(
            f,
            "{} of {} devices in after {:.1?}, {:.2} × devices / capacity; the broker's capacity {:.1}, {:.0} % of it for \
             devices that were still there; pairs: {}",
            self.inside,
            self.devices,
            course.took,
            course.took.as_secs_f64() / course.ideal(),
            course.capacity(),
            course.fruitful() * 100.0,
            self.messages
        )
    }
}
