//! Fleets in virtual time: what the parts together make of a storm.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::*;
use crate::admission::{adaptive, clients};

/// How the devices of a fleet come back after a refusal.
#[derive(Clone, Copy)]
enum Retry {
    /// After exactly so many seconds.
    Fixed(f64),
    /// After a random time up to so many seconds, evenly spread.
    Random(f64),
    /// When it is told to (v5, `retry-after-ms`), and a round trip and a handshake later.
    Told,
}

#[derive(Clone, Copy)]
struct Plan {
    devices: usize,
    retry: Retry,
    /// Devices come first within so many seconds.
    within: f64,
    /// Seconds that the broker's only server works on a CONNECT; 0: none to speak of.
    service: f64,
    /// What the broker answers.
    code: u8,
    until: f64,
}

const STORM: Plan = Plan {
    devices: 0,
    retry: Retry::Fixed(5.0),
    within: 0.0,
    service: 0.0,
    code: 0,
    until: 10_000.0,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Release,
    Answer(usize),
    Knock(usize),
}

#[derive(Clone, Copy, Default)]
struct Device {
    first: f64,
    attempts: u32,
    done: Option<f64>,
}

struct Storm {
    plan: Plan,
    classifier: Classifier,
    controller: Controller<usize>,
    names: Vec<String>,
    devices: Vec<Device>,
    seats: BTreeMap<usize, (Seat, Moment)>,
    /// They go on to the end of the trial.
    sessions: Vec<Session>,
    events: BinaryHeap<Reverse<(Moment, Event)>>,
    /// The next [`Event::Release`] that is under way.
    armed: Moment,
    busy_until: Moment,
    most_in_flight: u32,
    /// Moments at which a CONNECT reached the broker.
    reached: Vec<f64>,
    random: fastrand::Rng,
}

fn seconds(moment: Moment) -> f64 {
    moment.as_nanos() as f64 / 1e9
}

fn moment(seconds: f64) -> Moment {
    Moment::from_nanos((seconds * 1e9) as u64)
}

impl Storm {
    fn run(settings: Settings, plan: Plan) -> Self {
        let mut storm = Self {
            plan,
            classifier: Classifier::new(&settings),
            controller: Controller::new(settings, Moment::ZERO),
            names: (0..plan.devices)
                .map(|number| format!("device-{number}"))
                .collect(),
            devices: vec![Device::default(); plan.devices],
            seats: BTreeMap::new(),
            sessions: Vec::new(),
            events: BinaryHeap::new(),
            armed: Moment::NEVER,
            busy_until: Moment::ZERO,
            most_in_flight: 0,
            reached: Vec::new(),
            random: fastrand::Rng::with_seed(7),
        };
        for number in 0..plan.devices {
            let first = plan.within * storm.random.f64();
            storm.devices[number].first = first;
            storm.events.push(Reverse((moment(first), Event::Knock(number))));
        }
        while let Some(Reverse((now, event))) = storm.events.pop() {
            if seconds(now) > plan.until {
                break;
            }
            storm.step(now, event);
        }
        storm
    }

    fn step(&mut self, now: Moment, event: Event) {
        match event {
            Event::Release => {
                if now == self.armed {
                    self.armed = Moment::NEVER;
                }
            }
            Event::Knock(device) => self.knock(device, now),
            Event::Answer(device) => self.answer(device, now),
        }
        while let Some(released) = self.controller.release(now) {
            match released {
                Released::Admitted { waiter, seat } => self.send(waiter, seat, now),
                Released::Expired { waiter, refusal } => self.come_back(waiter, refusal, now),
            }
        }
        if let Some(next) = self.controller.next_release(now) {
            assert!(next > now, "the loop would spin");
            if next >= self.armed {
                return;
            }
            self.armed = next;
            self.events.push(Reverse((next, Event::Release)));
        }
    }

    fn knock(&mut self, device: usize, now: Moment) {
        self.devices[device].attempts += 1;
        let version = if matches!(self.plan.retry, Retry::Told) {
            Version::V5
        } else {
            Version::V3_1_1
        };
        let request = Request {
            client_id: &self.names[device],
            version,
            ..Request::default()
        };
        let arrival = self.classifier.classify(&request);
        match self.controller.decide(&arrival, |_| device, now) {
            Verdict::Admit { seat, .. } => self.send(device, seat, now),
            Verdict::Hold { .. } => {}
            Verdict::Refuse(refusal) => self.come_back(device, refusal, now),
        }
    }

    fn send(&mut self, device: usize, seat: Seat, now: Moment) {
        self.reached.push(seconds(now));
        self.busy_until = self.busy_until.max(now) + Duration::from_secs_f64(self.plan.service);
        self.seats.insert(device, (seat, now));
        self.most_in_flight = self.most_in_flight.max(self.controller.snapshot(now).in_flight);
        self.events
            .push(Reverse((self.busy_until, Event::Answer(device))));
    }

    fn answer(&mut self, device: usize, now: Moment) {
        let (seat, sent) = self.seats.remove(&device).unwrap();
        let outcome = Outcome::Answered {
            code: self.plan.code,
            latency: now - sent,
        };
        let session = self.controller.settle(seat, outcome, now);
        if self.plan.code == 0 {
            self.sessions.extend(session);
            self.devices[device].done = Some(seconds(now));
        } else {
            self.come_back(device, Refusal::new(Reason::BadCredentials), now);
        }
    }

    fn come_back(&mut self, device: usize, refusal: Refusal, now: Moment) {
        let pause = match self.plan.retry {
            Retry::Fixed(pause) => pause,
            Retry::Random(most) => most * self.random.f64(),
            Retry::Told => refusal.retry_after.unwrap().as_secs_f64() + 0.02 + 0.03 * self.random.f64(),
        };
        self.events.push(Reverse((
            now + Duration::from_secs_f64(pause),
            Event::Knock(device),
        )));
    }

    /// Seconds until everybody is in; `None`: somebody is not.
    fn all_in(&self) -> Option<f64> {
        self.devices
            .iter()
            .map(|device| device.done)
            .try_fold(0.0, |last: f64, done| Some(last.max(done?)))
    }

    /// Seconds from the first knock to the session, in order.
    fn waits(&self) -> Vec<f64> {
        let mut waits: Vec<f64> = self
            .devices
            .iter()
            .map(|device| device.done.expect("not in") - device.first)
            .collect();
        waits.sort_unstable_by(f64::total_cmp);
        waits
    }

    fn reached_between(&self, from: f64, to: f64) -> usize {
        self.reached
            .iter()
            .filter(|moment| (from..to).contains(*moment))
            .count()
    }
}

fn at_rate(rate: f64, burst: f64) -> Settings {
    Settings {
        rate,
        burst,
        max_in_flight: 10_000,
        max_wait: Duration::ZERO,
        ..Settings::default()
    }
}

#[test]
fn strangers_that_never_return_get_the_configured_rate() {
    let plan = Plan {
        devices: 2000,
        within: 20.0,
        retry: Retry::Fixed(1e6),
        until: 20.0,
        ..STORM
    };
    let storm = Storm::run(at_rate(50.0, 50.0), plan);
    assert!(
        (1018..=1050).contains(&storm.reached.len()),
        "{}",
        storm.reached.len()
    );
}

/// 1,500 devices on an exact 5 s timer at 50 a second: ideal is 30 s, 33 s were measured on a prototype, 146 s without
/// a hold and with a bucket of 10.
#[test]
fn a_hold_serves_a_fleet_in_lockstep() {
    let hold = Settings {
        max_wait: Duration::from_secs(4),
        ..at_rate(50.0, 10.0)
    };
    let all_in = Storm::run(
        hold,
        Plan {
            devices: 1500,
            ..STORM
        },
    )
    .all_in()
    .unwrap();
    assert!(all_in <= 38.0, "{all_in}");
    let refuse = Storm::run(
        at_rate(50.0, 10.0),
        Plan {
            devices: 1500,
            ..STORM
        },
    )
    .all_in()
    .unwrap();
    assert!(refuse >= 140.0, "{refuse}");
}

#[test]
fn a_fleet_that_keeps_its_appointments_comes_back_in_devices_over_rate() {
    for max_wait in [0, 4] {
        let settings = Settings {
            max_wait: Duration::from_secs(max_wait),
            ..at_rate(200.0, 200.0)
        };
        let storm = Storm::run(
            settings,
            Plan {
                devices: 8000,
                retry: Retry::Told,
                within: 0.5,
                ..STORM
            },
        );
        let all_in = storm.all_in().unwrap();
        let attempts = storm
            .devices
            .iter()
            .map(|device| f64::from(device.attempts))
            .sum::<f64>()
            / 8000.0;
        assert!(all_in <= 1.05 * 8000.0 / 200.0, "{all_in}");
        assert!(attempts <= 2.1, "{attempts}");
    }
}

/// The same with an adaptive rate in front of a broker that serves 80 a second.
#[test]
fn appointments_follow_the_pace_of_the_broker() {
    let adaptive = adaptive::Settings {
        enabled: true,
        ..adaptive::Settings::default()
    };
    let settings = Settings {
        adaptive,
        ..at_rate(200.0, 200.0)
    };
    let plan = Plan {
        devices: 4000,
        retry: Retry::Told,
        within: 0.5,
        service: 0.0125,
        ..STORM
    };
    let storm = Storm::run(settings, plan);
    let all_in = storm.all_in().unwrap();
    println!("{all_in}");
    assert!(all_in <= 1.3 * 4000.0 / 80.0, "{all_in}");
}

/// Nobody starves: under three times the load that can be served, with random retries, the slowest in a thousand needs
/// at most three times the median.
#[test]
fn the_unluckiest_wait_three_medians_at_most() {
    // A fleet that comes at once; 4,000 devices that retry every 16.7 s on average are 240 a second.
    let at_once = Plan {
        devices: 4000,
        retry: Retry::Random(33.3),
        within: 1.0,
        ..STORM
    };
    // Newcomers at three times the rate for 30 s.
    let newcomers = Plan {
        devices: 7200,
        retry: Retry::Random(20.0),
        within: 30.0,
        ..STORM
    };
    for (name, plan) in [("at once", at_once), ("newcomers", newcomers)] {
        for max_wait in [0, 2] {
            let settings = Settings {
                max_wait: Duration::from_secs(max_wait),
                ..at_rate(80.0, 80.0)
            };
            let storm = Storm::run(settings, plan);
            let waits = storm.waits();
            let (median, slowest) = (waits[waits.len() / 2], waits[waits.len() * 999 / 1000]);
            let ideal = plan.devices as f64 / 80.0;
            println!(
                "{name}, {max_wait} s: median {median:.1}, slowest {slowest:.1}, all in {:.1} of {ideal}",
                storm.all_in().unwrap()
            );
            assert!(slowest <= 3.0 * median, "{name}, {max_wait}: {median} {slowest}");
        }
    }
}

/// A slow broker, nothing told about its capacity, a fleet in lockstep with a patience of 5 s.
#[test]
fn adaptive_and_hold_bring_a_fleet_in_at_the_brokers_capacity() {
    let adaptive = adaptive::Settings {
        enabled: true,
        ..adaptive::Settings::default()
    };
    let settings = Settings {
        adaptive,
        max_wait: Duration::from_secs(4),
        max_in_flight: 100,
        ..at_rate(200.0, 200.0)
    };
    let storm = Storm::run(
        settings,
        Plan {
            devices: 2000,
            service: 0.0125,
            ..STORM
        },
    );
    let all_in = storm.all_in().unwrap();
    println!("{all_in} {}", storm.most_in_flight);
    assert!(all_in <= 1.3 * 2000.0 / 80.0, "{all_in}");
    assert!(storm.most_in_flight <= 4, "{}", storm.most_in_flight);
}

#[test]
fn a_hot_loop_with_wrong_passwords_reaches_the_broker_rarely() {
    let plan = Plan {
        devices: 300,
        retry: Retry::Fixed(0.05),
        code: 5,
        until: 60.0,
        ..STORM
    };
    let storm = Storm::run(at_rate(200.0, 200.0), plan);
    for second in 10..60 {
        let reached = storm.reached_between(f64::from(second), f64::from(second) + 1.0);
        assert!(reached < 5, "{reached} in second {second}");
    }
    assert!(storm.reached.len() > 900);
}

#[test]
fn a_limit_by_client_id_holds_in_a_hot_loop() {
    let per_client = clients::Settings {
        rate: 0.1,
        burst: 1.0,
    };
    let settings = Settings {
        per_client,
        ..at_rate(200.0, 200.0)
    };
    let storm = Storm::run(
        settings,
        Plan {
            devices: 10,
            retry: Retry::Fixed(0.05),
            code: 1,
            until: 100.0,
            ..STORM
        },
    );
    assert!(
        (100..=110).contains(&storm.reached.len()),
        "{}",
        storm.reached.len()
    );
}
