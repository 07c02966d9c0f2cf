//! What the controller makes of one arrival: objections, room, reasons and the time to come back.

use std::time::Duration;

use super::{Controller, Seat, Verdict};
use crate::admission::Refusal;
use crate::admission::appointments::Need;
use crate::admission::breaker::Access;
use crate::admission::bucket::{Source, Tokens};
use crate::admission::classify::Arrival;
use crate::admission::queues::Kept;
use crate::moment::Moment;
use crate::mqtt::Version;
use crate::reason::Reason;

/// What part of what there is at most (bucket and hold together) is kept for those who are due and away: strangers
/// feel it only in a storm, and the bucket still takes up a wave.
const KEPT: f64 = 0.125;

/// How long one that is due is held, where `max_wait` is shorter: it has its place (`docs/decisions/0009-places-of-the-due.md`),
/// and its token comes a moment late because the one before it did. Clocks, round trips and handshakes make that much of a
/// moment, and a client that gives up after 5 s still has its answer.
const PLACE: Duration = Duration::from_secs(2);

/// No refusal sends a client away for longer.
const LONGEST_RETRY: Duration = Duration::from_hours(24);

/// How one who knocks stands to those who were there before. Looked up once for each decision.
#[derive(Clone, Copy, Debug)]
pub(super) struct Standing {
    /// It comes on its slot or after it.
    due: bool,
    /// What is not for it of what there is.
    kept: Kept,
}

impl<W> Controller<W> {
    /// What speaks against it whatever there is room for.
    pub(super) fn objection(&mut self, arrival: &Arrival, now: Moment) -> Option<Refusal> {
        if let Some(code) = arrival
            .credentials
            .and_then(|key| self.credentials.recall(key, now))
        {
            return Some(Refusal {
                code: Some(code),
                keep_back: self.keep_back(arrival, now),
                ..Refusal::new(Reason::BadCredentials)
            });
        }
        let client = arrival.client?;
        if arrival.version == Version::V3_1
            && let Some(told) = self.second_dial.recall(client, now)
        {
            return Some(told);
        }
        let pause = self.clients.knock(client, now).err()?;
        let refusal = Refusal {
            retry_after: Some(pause),
            keep_back: self.keep_back(arrival, now),
            ..Refusal::new(Reason::ClientRate)
        };
        self.note(arrival, refusal, now);
        Some(refusal)
    }

    fn keep_back(&mut self, arrival: &Arrival, now: Moment) -> Duration {
        let client = arrival.client.or(arrival.credentials);
        client.map_or(Duration::ZERO, |client| self.hot_loops.refused(client, now))
    }

    /// Admits it if everything is there now.
    pub(super) fn admit(&mut self, arrival: &Arrival, standing: Standing, now: Moment) -> Option<Seat> {
        let access = self.brokers.access(now);
        if matches!(access, Access::Shut { .. }) {
            return None;
        }
        let seat = self
            .queues
            .admit(arrival.lane, arrival.cost, standing.kept, now)?;
        Some(self.seat(seat, *arrival, access))
    }

    /// Admits everybody. Who would have been held takes its tokens in advance, so that the next one's turn is
    /// reckoned as if it were queued behind it; who would have been refused takes none.
    pub(super) fn decide_dry(
        &mut self,
        arrival: &Arrival,
        standing: Standing,
        objection: Option<Refusal>,
        now: Moment,
    ) -> Verdict {
        if objection.is_none()
            && let Some(seat) = self.admit(arrival, standing, now)
        {
            return Verdict::Admit {
                seat,
                would_refuse: None,
            };
        }
        let full = || {
            let waiting = self.queues.owed(now) / arrival.cost.as_f64();
            (waiting >= self.settings.max_held as f64).then_some(Reason::HoldFull)
        };
        let would_refuse = objection
            .map(|refusal| refusal.reason)
            .or_else(|| self.obstacle(arrival, standing, now + self.patience(standing), now))
            .or_else(full);
        let paid = if would_refuse.is_none() {
            arrival.cost
        } else {
            Tokens::NONE
        };
        let seat = self.queues.admit_anyway(arrival.lane, paid, now);
        let access = self.brokers.access(now);
        Verdict::Admit {
            seat: self.seat(seat, *arrival, access),
            would_refuse,
        }
    }

    /// What keeps one who comes now from having its turn by `deadline`, as things stand: the latest of broker, tokens
    /// and seat.
    pub(super) fn obstacle(
        &self,
        arrival: &Arrival,
        standing: Standing,
        deadline: Moment,
        now: Moment,
    ) -> Option<Reason> {
        let broker = match self.brokers.access(now) {
            Access::Free | Access::Probe => None,
            Access::Shut { until } => Some(until),
        };
        let turn = self.queues.turn(arrival.lane, arrival.cost, standing.kept, now);
        let no_tokens = if self.queues.has_reserve(arrival.lane) {
            Reason::Lane
        } else {
            Reason::Rate
        };
        // Without a hold only the due wait, and not for a broker or for a seat of which nobody knows when it comes.
        let waits = deadline > now && broker.is_none() && turn.seat.is_some();
        if self.settings.max_wait.is_zero() && !waits {
            return Some(match broker {
                Some(_) => Reason::BreakerOpen,
                None if turn.tokens > now => no_tokens,
                None => Reason::InFlight,
            });
        }
        let broker = broker.unwrap_or(now);
        // Without a measured pace the tokens alone decide.
        let seat = turn.seat.unwrap_or(now);
        match broker.max(turn.tokens).max(seat) {
            turn if turn <= deadline => None,
            turn if turn == broker => Some(Reason::BreakerOpen),
            latest if latest == turn.tokens => Some(no_tokens),
            _ => Some(Reason::InFlight),
        }
    }

    /// A refusal for want of room, with the time at which there will be some.
    pub(super) fn refuse(
        &mut self,
        arrival: &Arrival,
        standing: Standing,
        reason: Reason,
        now: Moment,
    ) -> Refusal {
        let at = match (reason, self.brokers.access(now)) {
            (Reason::BreakerOpen, Access::Shut { until }) => until,
            _ => self.appointment(arrival, standing, now),
        };
        let retry_after = (at - now).clamp(Duration::from_millis(1), LONGEST_RETRY);
        if let Some(client) = arrival.client {
            self.clients.told(client, now + retry_after, now);
        }
        let refusal = Refusal {
            retry_after: Some(retry_after),
            ..Refusal::new(reason)
        };
        self.note(arrival, refusal, now);
        refusal
    }

    /// How long it may be held from now.
    pub(super) fn patience(&self, standing: Standing) -> Duration {
        let max_wait = self.settings.max_wait;
        if standing.due {
            max_wait.max(PLACE)
        } else {
            max_wait
        }
    }

    pub(super) fn standing(&self, arrival: &Arrival, now: Moment) -> Standing {
        let due = arrival
            .client
            .is_some_and(|client| self.appointments.is_due(client, now));
        let own = self.queues.source(arrival.lane);
        let kept = |source| {
            let all = self.appointments.kept(source);
            if all == Tokens::NONE || (due && source == own) {
                return Tokens::NONE;
            }
            let most = KEPT * self.queues.most_of(source, self.settings.max_wait);
            all.min(Tokens::new(most))
        };
        let shared = kept(Source::SHARED);
        let reserve = if own == Source::SHARED { shared } else { kept(own) };
        Standing {
            due,
            kept: Kept { shared, reserve },
        }
    }

    fn appointment(&mut self, arrival: &Arrival, standing: Standing, now: Moment) -> Moment {
        let source = self.queues.source(arrival.lane);
        // One that is due and did not get in comes behind those who are due and have not knocked yet.
        let ahead = if standing.due {
            let kept = self.appointments.kept(source);
            Kept {
                shared: if source == Source::SHARED {
                    kept
                } else {
                    Tokens::NONE
                },
                reserve: kept,
            }
        } else {
            Kept::NOTHING
        };
        let turn = self.queues.turn(arrival.lane, arrival.cost, ahead, now);
        let seat = self
            .queues
            .expected_seat(arrival.lane, self.settings.connack_timeout, now);
        let earliest = seat.unwrap_or(now).max(turn.tokens);
        let Some(client) = arrival.client else {
            return self.appointments.behind_all(source, earliest);
        };
        // What the others will be given is reckoned at the full rate: a slow start is over before most of them come.
        let full = self.queues.part_of(self.full_supply().rate, arrival.lane);
        let need = Need {
            source,
            cost: arrival.cost,
            rate: full.min(self.queues.pace().unwrap_or(f64::INFINITY)),
            earliest,
        };
        self.appointments.book(client, need, now)
    }

    fn note(&mut self, arrival: &Arrival, refusal: Refusal, now: Moment) {
        if let Some(client) = arrival.client
            && arrival.version == Version::V3_1_1
        {
            self.second_dial.note(client, refusal, now);
        }
    }
}
