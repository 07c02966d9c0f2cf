//! Devices that connect through a Seawall: its own gate and controller, driven as the daemon drives them
//! (`gate`, `door`, `connection`), by events in virtual time.

mod entrance;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use super::presence::{Alarms, Stage, Ticket};
use super::scenario::{Costs, Proxy as Settings};
use super::world::World;
use crate::admission::brokers::Report;
use crate::admission::classify::{Arrival, Classifier};
use crate::admission::controller::{Controller, Released, Seat, Verdict};
use crate::admission::gate::Gate;
use crate::admission::{Outcome, Request};
use crate::moment::Moment;

/// The pause after a dial that failed, before the door is asked again; that of `connection`.
const DIAL_PAUSE: Duration = Duration::from_millis(100);

/// The proxy.
#[derive(Debug)]
pub(super) struct Proxy {
    gate: Gate<Ticket>,
    classifier: Classifier,
    controller: Controller<Ticket>,
    costs: Costs,
    /// When each thread for handshakes is free.
    threads: BinaryHeap<Reverse<Moment>>,
    /// When the client's part of a handshake arrives, with its CONNECT.
    handshakes: BinaryHeap<Reverse<(Moment, Ticket)>>,
    /// `upstream.connack_timeout`
    answers: Alarms,
    redials: Alarms,
    /// When the gate and the door have something to release.
    gate_due: Moment,
    door_due: Moment,
    max_wait: Duration,
    refusal_delay: Duration,
    max_delayed: usize,
    /// When each answer that waits for its time is given.
    delayed: BinaryHeap<Reverse<Moment>>,
    tells_retry_after: bool,
    persistent: bool,
    random: fastrand::Rng,
}

/// What is due next in the proxy. At the same moment, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    /// A handshake is done.
    Handshake,
    /// A broker has been silent for too long.
    NoAnswer,
    /// A dial is tried again.
    Redial,
    /// The gate or the door lets somebody go on.
    Release,
}

impl Proxy {
    pub(super) fn new(settings: &Settings, persistent: bool, seed: u64) -> Self {
        let mut admission = settings.admission.clone();
        // This broker refuses nobody's credentials, so that there is nothing to remember of any.
        admission.bad_credentials.after = 0;
        Self {
            gate: Gate::new(&settings.gate, Moment::ZERO),
            classifier: Classifier::new(&admission),
            controller: Controller::new(admission, Moment::ZERO),
            costs: settings.costs,
            threads: (0..settings.handshake_threads())
                .map(|_| Reverse(Moment::ZERO))
                .collect(),
            handshakes: BinaryHeap::new(),
            answers: Alarms::new(settings.connack_timeout),
            redials: Alarms::new(DIAL_PAUSE),
            gate_due: Moment::NEVER,
            door_due: Moment::NEVER,
            max_wait: settings.admission.max_wait,
            refusal_delay: settings.refusal_delay,
            max_delayed: settings.max_delayed,
            delayed: BinaryHeap::new(),
            tells_retry_after: settings.tells_retry_after,
            persistent,
            random: fastrand::Rng::with_seed(!seed),
        }
    }

    /// What is due next, and when.
    pub(super) fn next_due(&self) -> (Moment, Due) {
        let handshake = self
            .handshakes
            .peek()
            .map_or(Moment::NEVER, |Reverse((due, _))| *due);
        let mut first = (handshake, Due::Handshake);
        for other in [
            (self.answers.next_due(), Due::NoAnswer),
            (self.redials.next_due(), Due::Redial),
            (self.gate_due.min(self.door_due), Due::Release),
        ] {
            if other.0 < first.0 {
                first = other;
            }
        }
        first
    }

    /// Does what [`Self::next_due`] spoke of.
    pub(super) fn go_on(&mut self, due: Due, world: &mut World, now: Moment) {
        match due {
            Due::Handshake => self.handshake_done(world, now),
            Due::NoAnswer => self.no_answer(world, now),
            Due::Redial => {
                if let Some(ticket) = self.redials.pop()
                    && let Some(presence) = world.presences.get(ticket)
                {
                    let came = presence.since;
                    self.decide(ticket, Some(came), world, now);
                }
            }
            Due::Release => {
                self.release_gate(world, now);
            }
        }
        self.release_door(world, now);
    }

    /// A login is done.
    pub(super) fn answer(&mut self, world: &mut World, now: Moment) {
        let Some(ticket) = world.broker.pop() else {
            return;
        };
        // One that timed out is over, and the broker has not heard of it.
        let Some(presence) = world.presences.end(ticket) else {
            world.tally.at(now).wasted += 1;
            return;
        };
        if let Stage::InFlight(seat) = presence.stage {
            let outcome = if presence.left {
                world.tally.at(now).wasted += 1;
                self.controller.report(0, Report::Abandoned, now);
                Outcome::Abandoned
            } else {
                world.connected(presence.device, now);
                self.controller.report(0, Report::Answered, now);
                Outcome::Answered {
                    code: 0,
                    latency: now.since(presence.since),
                }
            };
            self.settle(*seat, outcome, now);
        }
        self.release_door(world, now);
    }

    /// The patience of a device is over: it leaves, wherever it is.
    pub(super) fn give_up(&mut self, world: &mut World, now: Moment) {
        let Some(ticket) = world.end_of_patience() else {
            return;
        };
        let Some(presence) = world.presences.get(ticket) else {
            return;
        };
        let device = presence.device;
        match presence.stage {
            Stage::AtGate(spot) => {
                self.gate.withdraw(spot);
                world.presences.end(ticket);
                self.release_gate(world, now);
            }
            Stage::Held(place) => {
                self.controller.withdraw(place, now);
                world.presences.end(ticket);
            }
            // What it occupies is occupied until that is over: a handshake on its thread, a login at the broker.
            Stage::Handshake(_) | Stage::InFlight(_) | Stage::Between | Stage::Queued => presence.left = true,
        }
        world.tally.at(now).gave_up += 1;
        world.try_again(device, None, now);
        self.release_door(world, now);
    }

    fn decide(&mut self, ticket: Ticket, since: Option<Moment>, world: &mut World, now: Moment) {
        let Some(presence) = world.presences.get(ticket) else {
            return;
        };
        if presence.left {
            world.presences.end(ticket);
            return;
        }
        let device = presence.device;
        let version = world.fleet.version(device);
        let request = Request {
            client_id: world.fleet.name(device),
            version,
            persistent: self.persistent,
            ..Request::default()
        };
        let arrival = Arrival {
            since,
            ..self.classifier.classify(&request)
        };
        match self.controller.decide(&arrival, |_| ticket, now) {
            Verdict::Admit { seat, .. } => self.dial(ticket, seat, since, world, now),
            Verdict::Hold { place } => world.presences.put(ticket, Stage::Held(place)),
            Verdict::Refuse(refusal) => self.refuse(ticket, refusal.retry_after, world, now),
        }
    }

    /// Sends an admitted CONNECT to the broker. `since`: when it came, where this is not its first dial.
    fn dial(&mut self, ticket: Ticket, seat: Seat, since: Option<Moment>, world: &mut World, now: Moment) {
        let came = since.or_else(|| world.presences.get(ticket).map(|presence| presence.since));
        let may_wait = came.is_some_and(|came| now < came + self.max_wait);
        if !self.controller.may_dial(0, now) {
            self.settle(seat, Outcome::Unused, now);
            return self.redial(ticket, may_wait || since.is_none(), world, now);
        }
        if world.broker.enter(ticket, now).is_err() {
            self.controller.report(0, Report::Failed, now);
            self.settle(seat, Outcome::Failed, now);
            world.tally.at(now).broken += 1;
            return self.redial(ticket, may_wait, world, now);
        }
        if let Some(presence) = world.presences.get(ticket) {
            presence.since = now;
            presence.stage = Stage::InFlight(Box::new(seat));
        }
        self.answers.set(ticket, now);
        let cpu = micros(self.costs.admitted);
        let second = world.tally.at(now);
        second.sent += 1;
        second.cpu_us += cpu;
        world.note_broker(now);
    }

    fn redial(&mut self, ticket: Ticket, may_wait: bool, world: &mut World, now: Moment) {
        if may_wait {
            world.presences.put(ticket, Stage::Between);
            self.redials.set(ticket, now);
        } else {
            self.refuse(ticket, None, world, now);
        }
    }

    fn no_answer(&mut self, world: &mut World, now: Moment) {
        let Some(ticket) = self.answers.pop() else {
            return;
        };
        // It has been answered in the meantime, nearly always: then its presence is over.
        let Some(presence) = world.presences.get(ticket) else {
            return;
        };
        let left = presence.left;
        let Stage::InFlight(seat) = world.presences.leave_stage(ticket) else {
            return;
        };
        let (report, outcome) = if left {
            (Report::Abandoned, Outcome::Abandoned)
        } else {
            (Report::Failed, Outcome::TimedOut)
        };
        self.controller.report(0, report, now);
        self.settle(*seat, outcome, now);
        if left {
            world.presences.end(ticket);
        } else {
            self.refuse(ticket, None, world, now);
        }
    }

    fn refuse(&mut self, ticket: Ticket, retry_after: Option<Duration>, world: &mut World, now: Moment) {
        let Some(presence) = world.presences.end(ticket) else {
            return;
        };
        let cpu = micros(self.costs.refused);
        let second = world.tally.at(now);
        second.refused += 1;
        second.cpu_us += cpu;
        let told = retry_after.filter(|_| self.tells_retry_after);
        let told_at = self.answered_at(now);
        let gives_up = world.gives_up(presence.knocked).max(now);
        if told_at <= gives_up {
            world.try_again(presence.device, told, told_at);
        } else {
            world.try_again(presence.device, None, gives_up);
        }
    }

    /// When one who is refused now is told so.
    fn answered_at(&mut self, now: Moment) -> Moment {
        if self.refusal_delay.is_zero() {
            return now;
        }
        while self.delayed.peek().is_some_and(|Reverse(answer)| *answer <= now) {
            self.delayed.pop();
        }
        if self.delayed.len() >= self.max_delayed {
            return now;
        }
        let most = u64::try_from(self.refusal_delay.as_nanos()).unwrap_or(u64::MAX);
        let at = now + Duration::from_nanos(self.random.u64(0..=most));
        self.delayed.push(Reverse(at));
        at
    }

    fn settle(&mut self, seat: Seat, outcome: Outcome, now: Moment) {
        // Nobody takes a client id over here: what is known of the session is of no use.
        if let Some(session) = self.controller.settle(seat, outcome, now) {
            self.controller.ended(session);
        }
    }

    fn release_door(&mut self, world: &mut World, now: Moment) {
        while let Some(released) = self.controller.release(now) {
            match released {
                Released::Admitted { waiter, seat } => self.dial(waiter, seat, None, world, now),
                Released::Expired { waiter, refusal } => {
                    self.refuse(waiter, refusal.retry_after, world, now);
                }
            }
        }
        self.door_due = self.controller.next_release(now).unwrap_or(Moment::NEVER);
    }
}

fn micros(cost: Duration) -> u64 {
    u64::try_from(cost.as_micros()).unwrap_or(u64::MAX)
}
