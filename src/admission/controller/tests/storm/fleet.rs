//! A fleet in front of a controller, in virtual time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::super::*;

/// How the devices of a fleet come back after a refusal.
#[derive(Clone, Copy)]
pub(super) enum Retry {
    /// After exactly so many seconds.
    Fixed(f64),
    /// After a random time up to so many seconds, evenly spread.
    Random(f64),
    /// When it is told to (v5, `retry-after-ms`), and a round trip and a handshake later.
    Told,
    /// Not before the end of the trial.
    Never,
}

/// What a number of the devices in a row of ten do instead of what the plan says.
#[derive(Clone, Copy)]
pub(super) struct Others {
    pub(super) in_ten: usize,
    pub(super) retry: Retry,
}

#[derive(Clone, Copy)]
pub(super) struct Plan {
    pub(super) devices: usize,
    pub(super) retry: Retry,
    pub(super) others: Option<Others>,
    /// Seconds by which those who are told come late at most, evenly spread, above the 20 ms that are the least.
    pub(super) late: f64,
    /// How many of the devices, the first to come, are tablets.
    pub(super) tablets: usize,
    /// Devices come first within so many seconds.
    pub(super) within: f64,
    /// Seconds that a worker of the broker takes for a CONNECT; 0: none to speak of.
    pub(super) service: f64,
    pub(super) workers: usize,
    /// From when to when nothing can be dialled; who is in stays in.
    pub(super) outage: (f64, f64),
    /// What the broker answers.
    pub(super) code: u8,
    pub(super) until: f64,
}

pub(super) const STORM: Plan = Plan {
    devices: 0,
    retry: Retry::Fixed(5.0),
    others: None,
    late: 0.03,
    tablets: 0,
    within: 0.0,
    service: 0.0,
    workers: 1,
    outage: (f64::MAX, f64::MAX),
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
pub(super) struct Device {
    pub(super) first: f64,
    pub(super) attempts: u32,
    pub(super) done: Option<f64>,
}

pub(super) struct Storm {
    plan: Plan,
    classifier: Classifier,
    controller: Controller<usize>,
    names: Vec<String>,
    pub(super) devices: Vec<Device>,
    seats: BTreeMap<usize, (Seat, Moment)>,
    /// They go on to the end of the trial.
    sessions: Vec<Session>,
    events: BinaryHeap<Reverse<(Moment, Event)>>,
    /// The next [`Event::Release`] that is under way.
    armed: Moment,
    /// Until when each worker has work.
    busy_until: Vec<Moment>,
    pub(super) most_in_flight: u32,
    /// Moments at which a CONNECT reached the broker.
    pub(super) reached: Vec<f64>,
    random: fastrand::Rng,
}

fn seconds(moment: Moment) -> f64 {
    moment.as_nanos() as f64 / 1e9
}

fn moment(seconds: f64) -> Moment {
    Moment::from_nanos((seconds * 1e9) as u64)
}

impl Storm {
    pub(super) fn run(settings: Settings, plan: Plan) -> Self {
        let mut storm = Self {
            plan,
            classifier: Classifier::new(&settings),
            controller: Controller::new(settings, Moment::ZERO),
            names: (0..plan.devices)
                .map(|number| {
                    let kind = if number < plan.tablets { "tablet" } else { "device" };
                    format!("{kind}-{number}")
                })
                .collect(),
            devices: vec![Device::default(); plan.devices],
            seats: BTreeMap::new(),
            sessions: Vec::new(),
            events: BinaryHeap::new(),
            armed: Moment::NEVER,
            busy_until: vec![Moment::ZERO; plan.workers],
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
        let version = if matches!(self.retry(device), Retry::Told) {
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
        if !self.controller.may_dial(0, now) {
            self.controller.settle(seat, Outcome::Unused, now);
            return self.come_back(device, Refusal::new(Reason::NoBroker), now);
        }
        self.reached.push(seconds(now));
        let (from, to) = self.plan.outage;
        if (from..to).contains(&seconds(now)) {
            self.controller.report(0, Report::Failed, now);
            self.controller.settle(seat, Outcome::Failed, now);
            return self.come_back(device, Refusal::new(Reason::NoBroker), now);
        }
        let worker = self.busy_until.iter_mut().min().unwrap();
        *worker = (*worker).max(now) + Duration::from_secs_f64(self.plan.service);
        let answer = *worker;
        self.seats.insert(device, (seat, now));
        self.most_in_flight = self.most_in_flight.max(self.controller.snapshot(now).in_flight);
        self.events.push(Reverse((answer, Event::Answer(device))));
    }

    fn answer(&mut self, device: usize, now: Moment) {
        let (seat, sent) = self.seats.remove(&device).unwrap();
        self.controller.report(0, Report::Answered, now);
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
        let pause = match self.retry(device) {
            Retry::Fixed(pause) => pause,
            Retry::Random(most) => most * self.random.f64(),
            Retry::Told => {
                refusal.retry_after.unwrap().as_secs_f64() + 0.02 + self.plan.late * self.random.f64()
            }
            Retry::Never => return,
        };
        self.events.push(Reverse((
            now + Duration::from_secs_f64(pause),
            Event::Knock(device),
        )));
    }

    /// What this device does.
    fn retry(&self, device: usize) -> Retry {
        match self.plan.others {
            Some(others) if device % 10 < others.in_ten => others.retry,
            _ => self.plan.retry,
        }
    }

    /// Those who do what the plan says: seconds until all of them are in, and attempts of one on average.
    pub(super) fn obedient(&self) -> (f64, f64) {
        let others = self.plan.others.map_or(0, |others| others.in_ten);
        let obedient = self
            .devices
            .iter()
            .enumerate()
            .filter(|(number, _)| number % 10 >= others);
        let (mut last, mut attempts, mut count) = (0.0_f64, 0.0, 0.0);
        for (_, device) in obedient {
            last = last.max(device.done.unwrap_or(f64::INFINITY));
            attempts += f64::from(device.attempts);
            count += 1.0;
        }
        (last, attempts / count)
    }

    /// Seconds until everybody is in; `None`: somebody is not.
    pub(super) fn all_in(&self) -> Option<f64> {
        self.devices
            .iter()
            .map(|device| device.done)
            .try_fold(0.0, |last: f64, done| Some(last.max(done?)))
    }

    /// Seconds from the first knock to the session, in order.
    pub(super) fn waits(&self) -> Vec<f64> {
        let mut waits: Vec<f64> = self
            .devices
            .iter()
            .map(|device| device.done.expect("not in") - device.first)
            .collect();
        waits.sort_unstable_by(f64::total_cmp);
        waits
    }

    pub(super) fn reached_between(&self, from: f64, to: f64) -> usize {
        self.reached
            .iter()
            .filter(|moment| (from..to).contains(*moment))
            .count()
    }
}
