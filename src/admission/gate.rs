//! The gate before cryptography: decides whose handshake is worked on. A bounded number of places, a budget for each
//! [`Class`], and a bounded crowd that waits: resumers before strangers, the newest first, nobody for longer than
//! [`PATIENCE`].
//!
//! Invariants: places that are taken or revoked never outnumber `max_in_flight` at the moment one is given; whoever
//! waits has not taken a token; after [`Gate::release`] has returned `None` nobody waits who could go.

mod line;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use self::line::Line;
pub use self::line::Spot;
use crate::moment::Moment;

/// How old a connection may get while it waits: most clients give up after 5 s (rumqttc, paho-mqtt for Python), and the
/// rest of the way needs its time too. Whoever is older is served for nothing.
pub const PATIENCE: Duration = Duration::from_secs(4);

/// A place is not taken away before: the client's part is one round trip in TLS 1.3 and two in 1.2, of 100 to 600 ms
/// over a cellular modem, so that nearly every honest client is through, and a silent one costs others no more than this.
pub const LEAST_HELD: Duration = Duration::from_secs(1);

/// `[handshake]`, without its deadline: legal by construction of the configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Handshakes being worked on; at least 1.
    pub max_in_flight: u32,
    /// Most connections that wait for a place.
    pub max_waiting: usize,
    /// For full handshakes; `None`: no limit.
    pub full: Option<Budget>,
    /// For resumptions; `None`: no limit.
    pub resumed: Option<Budget>,
}

/// What one class may use.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Budget {
    /// Handshakes a second; above 0, may be fractional.
    pub rate: f64,
    /// Handshakes at once after a quiet time; at least 1.
    pub burst: f64,
}

/// What a client asks for, as far as its ClientHello tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// Brings a ticket that opens with our key: known, and not yet proven to be its owner.
    Resumed,
    /// Anybody else.
    Full,
}

/// Why a connection is closed at the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Turned {
    /// Its class has no token, and there will be none for it in time.
    Rate,
    /// Too many wait, and others go first.
    Full,
    /// It got older than [`PATIENCE`] before its turn.
    TooLate,
}

/// One of the places. Given back exactly once, by [`Gate::finish`].
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a place that is not given back is lost to everybody"]
pub struct Place {
    number: u64,
    class: Class,
}

impl Place {
    /// What [`Released::Revoked`] names it by; given once and never again.
    pub const fn number(&self) -> u64 {
        self.number
    }
}

/// What came of a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was used for what was asked, whatever the end.
    Used,
    /// It was asked for as [`Class::Resumed`], and became a full handshake.
    FellBack,
    /// Nothing was worked on, the client was gone: its token goes back.
    Unused,
}

/// What becomes of one who enters.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Its handshake begins now.
    Place(Place),
    /// Waits, to be found there by [`Gate::withdraw`]; [`Gate::release`] will say what comes of it.
    Wait(Spot),
    /// Is closed at once.
    Turned(Turned),
}

/// A change that the caller has to carry out.
#[derive(Debug, PartialEq, Eq)]
pub enum Released<W> {
    /// A waiting one's turn has come.
    Place {
        /// What was handed in with it.
        waiter: W,
        /// To be finished.
        place: Place,
    },
    /// A waiting one is to be closed.
    Turned {
        /// What was handed in with it.
        waiter: W,
        /// Why.
        reason: Turned,
    },
    /// The holder of the place with this number is to end, and to give it back: it was the slowest, and others wait.
    Revoked(u64),
}

/// What can be seen of the gate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Handshakes being worked on.
    pub in_flight: usize,
    /// Resumers that wait for a place.
    pub waiting_resumed: usize,
    /// Strangers that wait for a place.
    pub waiting_full: usize,
}

/// Decides whose handshake is worked on. `W` is what the caller needs to reach a waiting one: a channel in the daemon,
/// an index in virtual time.
#[derive(Debug)]
pub struct Gate<W> {
    max_in_flight: usize,
    max_waiting: usize,
    resumed: Line<W>,
    full: Line<W>,
    /// Since when each place is taken; numbers grow with time, so the first is the one held longest.
    taken: BTreeMap<u64, Moment>,
    /// Places whose holder was told to end and has not done so yet.
    revoked: BTreeSet<u64>,
    next: u64,
}

impl<W> Gate<W> {
    /// A gate with all places free and full budgets.
    pub fn new(settings: &Settings, now: Moment) -> Self {
        Self {
            max_in_flight: places(settings),
            max_waiting: settings.max_waiting,
            resumed: Line::new(settings.resumed, now),
            full: Line::new(settings.full, now),
            taken: BTreeMap::new(),
            revoked: BTreeSet::new(),
            next: 0,
        }
    }

    /// Takes new settings over. Places that are taken stay taken, and no budget gets a fresh burst. To be followed by
    /// [`Self::release`].
    pub fn reconfigure(&mut self, settings: &Settings, now: Moment) {
        self.max_in_flight = places(settings);
        self.max_waiting = settings.max_waiting;
        self.resumed.reconfigure(settings.resumed, now);
        self.full.reconfigure(settings.full, now);
    }

    /// Decides over one connection whose ClientHello is whole; `since` is when it was accepted. Who finds a place and a
    /// token gets them. `waiter` is called only for [`Verdict::Wait`], which is to be followed by [`Self::release`]:
    /// the newcomer may have pushed another one out.
    pub fn enter(
        &mut self,
        class: Class,
        since: Moment,
        waiter: impl FnOnce(Spot) -> W,
        now: Moment,
    ) -> Verdict {
        let first = class == Class::Resumed || !self.resumed.has_turn(0, now);
        if first && self.has_room() && self.line(class).take(now) {
            return Verdict::Place(self.place(class, now));
        }
        let deadline = since + PATIENCE;
        if deadline <= now {
            return Verdict::Turned(Turned::TooLate);
        }
        if self.line(class).token_at(0, now) > deadline {
            return Verdict::Turned(Turned::Rate);
        }
        if self.waiting() >= self.max_waiting && self.would_be_last(class, since) {
            return Verdict::Turned(Turned::Full);
        }
        let spot = Spot {
            class,
            since,
            number: self.number(),
        };
        self.line(class).push(spot, waiter(spot));
        Verdict::Wait(spot)
    }

    /// A waiting one has left by itself. Spots that were released already are ignored.
    pub fn withdraw(&mut self, spot: Spot) {
        self.line(spot.class).remove(spot);
    }

    /// A handshake has ended, or was given up. To be followed by [`Self::release`].
    #[expect(
        clippy::needless_pass_by_value,
        reason = "a place is finished once, so it is used up"
    )]
    pub fn finish(&mut self, place: Place, outcome: Outcome, now: Moment) {
        match outcome {
            Outcome::Used => {}
            Outcome::Unused => self.line(place.class).refund(now),
            // The token of its claim stays spent: a refund would let forged claims through for nothing.
            Outcome::FellBack => self.full.owe(now),
        }
        if self.taken.remove(&place.number).is_none() {
            self.revoked.remove(&place.number);
        }
    }

    /// The next change that is due; call until `None`.
    pub fn release(&mut self, now: Moment) -> Option<Released<W>> {
        if self.waiting() == 0 {
            return None;
        }
        let late = self.full.pop_late(now).or_else(|| self.resumed.pop_late(now));
        if let Some(waiter) = late {
            return Some(turned(waiter, Turned::TooLate));
        }
        if let Some(granted) = self.grant(now) {
            return Some(granted);
        }
        if self.waiting() > self.max_waiting {
            let last = self.full.pop_oldest().or_else(|| self.resumed.pop_oldest());
            return last.map(|waiter| turned(waiter, Turned::Full));
        }
        let hopeless = self
            .full
            .pop_hopeless(now)
            .or_else(|| self.resumed.pop_hopeless(now));
        if let Some(waiter) = hopeless {
            return Some(turned(waiter, Turned::Rate));
        }
        self.revoke(now).map(Released::Revoked)
    }

    /// When [`Self::release`] will next have something, unless somebody enters or finishes before; `None`: nobody
    /// waits.
    pub fn next_release(&self, now: Moment) -> Option<Moment> {
        let lines = [&self.resumed, &self.full];
        let late = lines.iter().filter_map(|line| line.late_at()).min()?;
        let promised = if self.has_room() { 0 } else { self.revoked.len() };
        let token = lines.iter().filter_map(|line| line.turn_at(promised, now)).min();
        let turn = match token {
            None => Moment::NEVER,
            Some(token) if self.has_room() => token,
            Some(token) => self
                .taken
                .first_key_value()
                .map_or(Moment::NEVER, |(_, since)| token.max(*since + LEAST_HELD)),
        };
        Some(late.min(turn).max(now))
    }

    /// Figures for metrics and status.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot {
            in_flight: self.in_flight(),
            waiting_resumed: self.resumed.len(),
            waiting_full: self.full.len(),
        }
    }

    fn grant(&mut self, now: Moment) -> Option<Released<W>> {
        if !self.has_room() {
            return None;
        }
        for class in [Class::Resumed, Class::Full] {
            let line = self.line(class);
            if line.len() > 0 && line.take(now) {
                let waiter = line.pop_newest()?;
                let place = self.place(class, now);
                return Some(Released::Place { waiter, place });
            }
        }
        None
    }

    /// When places run out the slowest go first, one for each that could go in its stead.
    fn revoke(&mut self, now: Moment) -> Option<u64> {
        let promised = self.revoked.len();
        let wanted = self.resumed.has_turn(promised, now) || self.full.has_turn(promised, now);
        if self.has_room() || !wanted {
            return None;
        }
        let (number, since) = self.taken.first_key_value()?;
        if *since + LEAST_HELD > now {
            return None;
        }
        let number = *number;
        self.taken.remove(&number);
        self.revoked.insert(number);
        Some(number)
    }

    /// Whether one who enters would be the first to go when the crowd gets too large.
    fn would_be_last(&self, class: Class, since: Moment) -> bool {
        match class {
            Class::Full => self.full.is_oldest(since),
            Class::Resumed => self.full.len() == 0 && self.resumed.is_oldest(since),
        }
    }

    fn place(&mut self, class: Class, now: Moment) -> Place {
        let number = self.number();
        self.taken.insert(number, now);
        Place { number, class }
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn line(&mut self, class: Class) -> &mut Line<W> {
        match class {
            Class::Resumed => &mut self.resumed,
            Class::Full => &mut self.full,
        }
    }

    fn has_room(&self) -> bool {
        self.in_flight() < self.max_in_flight
    }

    fn in_flight(&self) -> usize {
        self.taken.len() + self.revoked.len()
    }

    fn waiting(&self) -> usize {
        self.resumed.len() + self.full.len()
    }
}

fn places(settings: &Settings) -> usize {
    usize::try_from(settings.max_in_flight)
        .unwrap_or(usize::MAX)
        .max(1)
}

const fn turned<W>(waiter: W, reason: Turned) -> Released<W> {
    Released::Turned { waiter, reason }
}

#[cfg(test)]
mod tests;
