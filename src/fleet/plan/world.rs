//! What a run has with and without a proxy: devices and when they knock, the broker, and what is counted.

use std::time::Duration;

use super::broker::Broker;
use super::device::Fleet;
use super::outcome::Second;
use super::presence::{Alarms, Presences, Ticket};
use super::scenario::{Pattern, Scenario, ScenarioError};
use super::tally::{Fillable, Tally};
use super::wheel::Wheel;
use crate::moment::Moment;

/// Everything but the proxy.
#[derive(Debug)]
pub(super) struct World {
    pub(super) fleet: Fleet,
    wheel: Wheel,
    pub(super) broker: Broker,
    pub(super) presences: Presences,
    /// Patience, counted from when a knock is heard.
    patience: Alarms,
    pub(super) tally: Tally,
    pub(super) returned: u32,
    pub(super) round_trip: Duration,
    /// How late the network makes each attempt. One stream for all: drawn in the order of events.
    network: fastrand::Rng,
    pub(super) back_at: Moment,
    /// The end of the run. Whoever is due later is not put on the wheel again.
    pub(super) until: Moment,
}

impl World {
    pub(super) fn new(scenario: &Scenario) -> Result<Self, ScenarioError> {
        scenario.check()?;
        let fleet = Fleet::new(&scenario.fleet, scenario.seed)?;
        let outage = scenario.outage;
        let last_hit = match outage.pattern {
            Pattern::Rolling => outage.over,
            _ => Duration::ZERO,
        };
        let back_at = Moment::ZERO + outage.lasts;
        let until = back_at + last_hit + scenario.watched;
        let down_until = match outage.pattern {
            Pattern::Broker => back_at,
            _ => Moment::ZERO,
        };
        // Both ways, and the time until the knock is heard, are not spent waiting at the front.
        let waits = scenario.fleet.patience.saturating_sub(scenario.round_trip * 2);
        let fillable = Fillable::new(scenario.broker.capacity, waits);
        let mut world = Self {
            fleet,
            wheel: Wheel::new(),
            broker: Broker::new(&scenario.broker, down_until),
            presences: Presences::default(),
            patience: Alarms::new(waits),
            tally: Tally::new(back_at, fillable),
            returned: 0,
            round_trip: scenario.round_trip,
            network: fastrand::Rng::with_seed(scenario.seed),
            back_at,
            until,
        };
        for number in 0..world.fleet.len() {
            world.first_attempt(number, scenario);
        }
        Ok(world)
    }

    /// When the next device knocks.
    pub(super) fn next_knock(&mut self) -> Moment {
        self.wheel.next_due(|number| self.fleet.foresee(number))
    }

    /// The device that [`Self::next_knock`] spoke of; its attempt is counted.
    pub(super) fn knock(&mut self, now: Moment) -> Option<u32> {
        let number = self.wheel.pop()?;
        self.tally.at(now).knocks += 1;
        if now >= self.back_at {
            self.fleet.attempted(number);
            let out = u64::from(self.fleet.len() - self.returned);
            self.tally.fillable.knock(out, now);
        }
        Some(number)
    }

    /// The device that knocked now waits, as long as its patience lasts.
    pub(super) fn wait(&mut self, ticket: Ticket, now: Moment) {
        self.patience.set(ticket, now);
    }

    /// When one who knocked at `knocked` gives up.
    pub(super) fn gives_up(&self, knocked: Moment) -> Moment {
        knocked + self.patience.after()
    }

    /// When the next patience ends.
    pub(super) fn next_end_of_patience(&self) -> Moment {
        self.patience.next_due()
    }

    /// Whose patience that was. It may be over already.
    pub(super) fn end_of_patience(&mut self) -> Option<Ticket> {
        self.patience.pop()
    }

    /// An attempt of `number` has failed at `now`, as the front sees it; it tries again.
    pub(super) fn try_again(&mut self, number: u32, told: Option<Duration>, now: Moment) {
        let pause = self.fleet.pause(number, told);
        // The bad news travels for half a round trip, the next ClientHello for one and a half.
        let due = now + pause + self.round_trip * 2 + self.delay();
        self.insert(number, due);
    }

    /// `number` is connected: the broker answered at `now`.
    pub(super) fn connected(&mut self, number: u32, now: Moment) {
        let attempts = self.fleet.attempts(number);
        self.returned += 1;
        self.tally.at(now).logins += 1;
        self.tally.returned(attempts, now + self.round_trip / 2);
    }

    /// Counts what the broker has to do.
    pub(super) fn note_broker(&mut self, now: Moment) {
        let present = u32::try_from(self.broker.present()).unwrap_or(u32::MAX);
        let second: &mut Second = self.tally.at(now);
        second.queued = second.queued.max(present);
    }

    /// When a device tries for the first time once somebody can hear it.
    fn first_attempt(&mut self, number: u32, scenario: &Scenario) {
        let outage = scenario.outage;
        let hears_nobody_until = match outage.pattern {
            Pattern::Tower | Pattern::Rolling => outage.lasts,
            Pattern::Cold | Pattern::Broker => Duration::ZERO,
        };
        let mut dials = if outage.pattern == Pattern::Cold {
            outage.lasts + self.fleet.up_to(number, outage.over)
        } else {
            self.fleet.pause(number, None)
        };
        while dials < hears_nobody_until {
            dials += self.fleet.pause(number, None);
        }
        if outage.pattern == Pattern::Rolling {
            // Hit in the order of their numbers, each with its own outage.
            dials += outage
                .over
                .mul_f64(f64::from(number) / f64::from(self.fleet.len()));
        }
        let due = Moment::ZERO + dials + self.round_trip * 3 / 2 + self.delay();
        self.insert(number, due);
    }

    fn insert(&mut self, number: u32, due: Moment) {
        if due <= self.until {
            self.wheel.insert(number, due);
        }
    }

    fn delay(&mut self) -> Duration {
        if self.round_trip.is_zero() {
            return Duration::ZERO;
        }
        Duration::from_nanos(self.network.u64(0..=self.round_trip.as_nanos() as u64))
    }
}
