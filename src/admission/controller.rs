//! The only door: decides over every CONNECT, and settles every seat.

mod judgement;
mod snapshot;

use std::time::Duration;

pub use self::snapshot::{RateCause, Snapshot};
use super::adaptive::Adaptive;
use super::appointments::Appointments;
use super::breaker::{Access, State};
use super::brokers::{Brokers, Changes, Report};
use super::classify::Arrival;
use super::clients::{Clients, Session};
use super::credentials::Credentials;
use super::hot_loop::HotLoops;
pub use super::queues::Place;
use super::queues::{self, Queues, Supply};
use super::second_dial::SecondDial;
use super::{Outcome, Refusal, Settings, Share};
use crate::moment::Moment;
use crate::reason::Reason;

/// A place among those in flight to a broker. Settled exactly once, by [`Controller::settle`].
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a seat that is not settled is lost to everybody"]
pub struct Seat {
    inner: queues::Seat,
    arrival: Arrival,
    probe: bool,
    /// The session that it comes to, if the broker accepts it: known from here on, since the broker throws an older one
    /// of the same client out before it answers.
    session: Option<Session>,
}

/// What becomes of a CONNECT.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Goes to a broker now.
    Admit {
        /// To be settled.
        seat: Seat,
        /// In a dry run: why it would have been refused.
        would_refuse: Option<Reason>,
    },
    /// Waits; [`Controller::release`] will say when.
    Hold {
        /// To [`Controller::withdraw`] with, unless [`Controller::release`] was first.
        place: Place,
    },
    /// Is answered at once.
    Refuse(Refusal),
}

/// A held CONNECT whose waiting is over.
#[derive(Debug)]
pub enum Released<W> {
    /// Its turn has come.
    Admitted {
        /// What was handed in with it.
        waiter: W,
        /// To be settled.
        seat: Seat,
    },
    /// Its time is up.
    Expired {
        /// What was handed in with it.
        waiter: W,
        /// What to answer.
        refusal: Refusal,
    },
}

/// While the rate rises after a breaker has closed, it is looked at this often.
const RISE: Duration = Duration::from_millis(50);

/// Decides over every CONNECT. `W` is what the caller needs to reach a held one: a channel in the daemon, an index
/// in virtual time.
#[derive(Debug)]
pub struct Controller<W> {
    settings: Settings,
    queues: Queues<(W, Arrival)>,
    brokers: Brokers,
    adaptive: Adaptive,
    credentials: Credentials,
    clients: Clients,
    second_dial: SecondDial,
    hot_loops: HotLoops,
    appointments: Appointments,
    share: Share,
    wanted: f64,
}

impl<W> Controller<W> {
    /// A controller with full buckets that knows nobody.
    pub fn new(settings: Settings, now: Moment) -> Self {
        let adaptive = Adaptive::new(settings.adaptive, settings.rate, settings.max_in_flight, now);
        Self {
            queues: Queues::new(&settings, Supply::full(&settings, &adaptive, Share::WHOLE), now),
            brokers: Brokers::new(settings.breaker, settings.servers),
            adaptive,
            credentials: Credentials::new(settings.bad_credentials, now),
            clients: Clients::new(settings.per_client),
            second_dial: SecondDial::default(),
            hot_loops: HotLoops::new(now),
            appointments: Appointments::new(now),
            share: Share::WHOLE,
            wanted: 0.0,
            settings,
        }
    }

    /// From now on this is its part of a budget in common. What is in the buckets is cut to it, never filled up.
    pub fn set_share(&mut self, share: Share, now: Moment) {
        self.share = share;
        self.go_on(now);
    }

    /// Takes new settings over; what was issued stays issued, and no fresh burst is granted. Who is held keeps its
    /// deadline and its place, and what was learned is kept.
    pub fn reconfigure(&mut self, settings: Settings, now: Moment) {
        self.brokers
            .reconfigure(settings.breaker, settings.servers, &settings.retired);
        self.adaptive
            .reconfigure(settings.adaptive, settings.max_in_flight);
        self.credentials.reconfigure(settings.bad_credentials);
        self.clients.reconfigure(settings.per_client);
        self.settings = settings;
        let supply = self.supply(now);
        self.queues.reconfigure(&self.settings, supply, now);
    }

    /// What it goes by.
    pub const fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Decides over one CONNECT. `waiter` is called only for [`Verdict::Hold`].
    pub fn decide(&mut self, arrival: &Arrival, waiter: impl FnOnce(Place) -> W, now: Moment) -> Verdict {
        self.go_on(now);
        // Who knocks again has passed these, and is not counted twice.
        let objection = match arrival.since {
            None => self.objection(arrival, now),
            Some(_) => None,
        };
        if arrival.since.is_none() && objection.is_none() {
            self.wanted += arrival.cost.as_f64();
        }
        if let Some(refusal) = objection
            && !self.settings.dry_run
        {
            return Verdict::Refuse(refusal);
        }
        let standing = self.standing(arrival, now);
        if self.settings.dry_run {
            return self.decide_dry(arrival, standing, objection, now);
        }
        if let Some(seat) = self.admit(arrival, standing, now) {
            return Verdict::Admit {
                seat,
                would_refuse: None,
            };
        }
        let deadline = arrival.since.unwrap_or(now) + self.patience(standing);
        let full = || (!self.queues.has_place(arrival.lane)).then_some(Reason::HoldFull);
        let reason = self.obstacle(arrival, standing, deadline, now).or_else(full);
        let place = match reason {
            Some(_) => None,
            None => self
                .queues
                .push(arrival.lane, arrival.cost, deadline, now, |place| {
                    (waiter(place), *arrival)
                }),
        };
        match place {
            Some(place) => {
                if let Some(client) = arrival.client {
                    self.appointments.arrived(client, now);
                }
                Verdict::Hold { place }
            }
            None => Verdict::Refuse(self.refuse(arrival, standing, reason.unwrap_or(Reason::HoldFull), now)),
        }
    }

    /// A held client has left: its place is free, it never took a token. Unknown places (already released) are ignored.
    pub fn withdraw(&mut self, place: Place, _now: Moment) {
        self.queues.remove(place);
    }

    /// The next held CONNECT whose turn has come or whose time is up; call until `None`.
    pub fn release(&mut self, now: Moment) -> Option<Released<W>> {
        self.go_on(now);
        if self.queues.held() == 0 {
            return None;
        }
        if let Some(late) = self.queues.pop_due_before(now) {
            return Some(self.expire(late, now));
        }
        let access = self.brokers.access(now);
        let ready = match access {
            _ if self.settings.dry_run => self.queues.pop_anyway(now),
            Access::Free | Access::Probe => self.queues.pop_ready(now),
            Access::Shut { .. } => None,
        };
        if let Some(((waiter, arrival), seat)) = ready {
            return Some(Released::Admitted {
                waiter,
                seat: self.seat(seat, arrival, access),
            });
        }
        // The moment of the deadline itself still admits; who is left over then has no later one.
        let due = self.queues.pop_due_before(now + Duration::from_nanos(1))?;
        Some(self.expire(due, now))
    }

    /// When [`Self::release`] is to be called next, unless a seat is settled or a broker reported on before; `None`: nobody
    /// is held, and nothing changes with time alone.
    pub fn next_release(&self, now: Moment) -> Option<Moment> {
        let Some(deadline) = self.queues.next_deadline() else {
            // A bucket fills to the size that it was last told: nobody may come to tell it.
            let is_rising = self.brokers.access(now) == Access::Free && self.rises(now);
            return is_rising.then(|| now + RISE);
        };
        let deadline = deadline.max(now);
        if self.settings.dry_run {
            return Some(now);
        }
        let ready = match self.brokers.access(now) {
            Access::Shut { until } if until > now => until,
            Access::Shut { .. } => Moment::NEVER,
            Access::Free | Access::Probe if self.rises(now) => self.queues.next_ready(now).min(now + RISE),
            Access::Free | Access::Probe => self.queues.next_ready(now),
        };
        Some(deadline.min(ready))
    }

    /// Whether anybody is held.
    pub fn has_held(&self) -> bool {
        self.queues.held() > 0
    }

    /// An admitted CONNECT has come out. Where the broker has accepted it, it has a session that is to be
    /// [ended](Self::ended).
    pub fn settle(&mut self, seat: Seat, outcome: Outcome, now: Moment) -> Option<Session> {
        let Seat {
            inner,
            arrival,
            probe,
            session,
        } = seat;
        let full = if self.settings.dry_run {
            self.queues.in_flight() >= self.queues.supply().max_in_flight
        } else {
            self.queues.is_limited_by_seats(now)
        };
        self.queues.leave(inner, outcome != Outcome::Unused, now);
        if probe {
            self.brokers.probe_settled();
        }
        match outcome {
            Outcome::Answered { code, latency } => {
                self.queues.took(latency);
                if self.settings.adaptive.enabled {
                    self.adaptive.answered(code, latency, full, now);
                }
                if let Some(key) = arrival.credentials {
                    self.credentials.learn(key, code, now);
                }
            }
            Outcome::Failed => self.adaptive.failed(now),
            Outcome::TimedOut => {
                self.queues.took(self.settings.connack_timeout);
                self.adaptive.failed(now);
            }
            Outcome::Abandoned | Outcome::Unused => {}
        }
        self.go_on(now);
        if matches!(outcome, Outcome::Answered { code: 0, .. }) {
            return session;
        }
        if let Some(session) = session {
            self.clients.ended(session);
        }
        None
    }

    /// The broker has ended the session of a client.
    pub fn kicked_out(&mut self, session: Session, now: Moment) {
        self.clients.kicked_out(session, now);
    }

    /// The session of a client is over.
    pub fn ended(&mut self, session: Session) {
        self.clients.ended(session);
    }

    /// Whether an admitted CONNECT may be sent to `server`, an index into `upstream.servers`. To be asked before each
    /// dial, and followed by [`Self::report`].
    pub fn may_dial(&mut self, server: usize, now: Moment) -> bool {
        self.brokers.may_dial(server, now)
    }

    /// How an attempt on `server` came out. Whether that speaks against the broker: else it is no [`Outcome::Failed`].
    pub fn report(&mut self, server: usize, report: Report, now: Moment) -> bool {
        let blamed = self.brokers.report(server, report, now);
        self.go_on(now);
        blamed
    }

    /// The breaker of `server`, as metrics show it.
    pub fn breaker(&self, server: usize, now: Moment) -> State {
        self.brokers.state(server, now)
    }

    /// How the breakers have changed since the last call.
    pub fn breaker_changes(&mut self, now: Moment) -> Changes {
        self.brokers.take_changes(now)
    }

    fn expire(&mut self, (waiter, arrival): (W, Arrival), now: Moment) -> Released<W> {
        let standing = self.standing(&arrival, now);
        Released::Expired {
            waiter,
            refusal: self.refuse(&arrival, standing, Reason::HoldExpired, now),
        }
    }

    fn seat(&mut self, seat: queues::Seat, arrival: Arrival, access: Access) -> Seat {
        let probe = access == Access::Probe;
        if probe {
            self.brokers.probe_admitted();
        }
        if let Some(client) = arrival.client {
            self.appointments.admitted(client);
        }
        let session = arrival.client.and_then(|client| self.clients.enters(client));
        Seat {
            inner: seat,
            arrival,
            probe,
            session,
        }
    }

    /// Brings everything that moves with time to `now`.
    fn go_on(&mut self, now: Moment) {
        let supply = self.supply(now);
        if supply != self.queues.supply() {
            self.queues.set_supply(supply, now);
        }
        self.appointments.advance(self.queues.sources(), now);
    }

    fn rises(&self, now: Moment) -> bool {
        self.brokers.capacity(now) < 1.0
    }

    /// What there is to share out at `now`.
    fn supply(&self, now: Moment) -> Supply {
        let full = self.full_supply();
        let capacity = self.brokers.capacity(now);
        // The burst as well: no crowd behind a breaker that has just closed.
        Supply {
            rate: full.rate * capacity,
            burst: (full.burst * capacity).max(1.0),
            ..full
        }
    }

    fn full_supply(&self) -> Supply {
        Supply::full(&self.settings, &self.adaptive, self.share)
    }
}

#[cfg(test)]
mod tests;
