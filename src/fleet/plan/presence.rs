//! Devices that are somewhere between their knock and its outcome. There are few of them at a time, whatever the size
//! of the fleet, so that what is known of them does not make every device larger.

use std::collections::VecDeque;
use std::time::Duration;

use crate::admission::{controller, gate};
use crate::moment::Moment;

/// Names a presence. One that is over is not found by its ticket any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Ticket {
    slot: u32,
    generation: u32,
}

/// Where a device is.
#[derive(Debug, Default)]
pub(super) enum Stage {
    /// Just came, or between two steps.
    #[default]
    Between,
    /// Waits at the gate for its handshake.
    AtGate(gate::Spot),
    /// Its handshake is worked on.
    Handshake(gate::Place),
    /// Held at the door.
    Held(controller::Place),
    /// With the broker, through the proxy. Few are, and a seat is large.
    InFlight(Box<controller::Seat>),
    /// In the queue of a broker without a proxy.
    Queued,
}

/// A device that has knocked.
#[derive(Debug)]
pub(super) struct Presence {
    pub(super) device: u32,
    /// When it knocked.
    pub(super) knocked: Moment,
    /// When its CONNECT was complete, or sent to the broker.
    pub(super) since: Moment,
    pub(super) stage: Stage,
    /// It has given up, and what it occupied is not free yet.
    pub(super) left: bool,
}

#[derive(Debug)]
struct Slot {
    generation: u32,
    presence: Option<Presence>,
}

/// All that are present.
#[derive(Debug, Default)]
pub(super) struct Presences {
    slots: Vec<Slot>,
    free: Vec<u32>,
}

impl Presences {
    /// `device` has knocked.
    pub(super) fn take(&mut self, device: u32, now: Moment) -> Ticket {
        let presence = Presence {
            device,
            knocked: now,
            since: now,
            stage: Stage::Between,
            left: false,
        };
        if let Some(number) = self.free.pop()
            && let Some(slot) = self.slots.get_mut(number as usize)
        {
            slot.presence = Some(presence);
            return Ticket {
                slot: number,
                generation: slot.generation,
            };
        }
        // More than 2^32 at a time: beyond the number of devices.
        let number = u32::try_from(self.slots.len()).unwrap_or(u32::MAX);
        self.slots.push(Slot {
            generation: 0,
            presence: Some(presence),
        });
        Ticket {
            slot: number,
            generation: 0,
        }
    }

    /// The presence, while it lasts.
    pub(super) fn get(&mut self, ticket: Ticket) -> Option<&mut Presence> {
        let slot = self.slots.get_mut(ticket.slot as usize)?;
        slot.presence
            .as_mut()
            .filter(|_| slot.generation == ticket.generation)
    }

    /// Where it is; it is to be put somewhere else, or to be ended.
    pub(super) fn leave_stage(&mut self, ticket: Ticket) -> Stage {
        self.get(ticket)
            .map(|presence| std::mem::take(&mut presence.stage))
            .unwrap_or_default()
    }

    /// Puts it somewhere.
    pub(super) fn put(&mut self, ticket: Ticket, stage: Stage) {
        if let Some(presence) = self.get(ticket) {
            presence.stage = stage;
        }
    }

    /// It is over.
    pub(super) fn end(&mut self, ticket: Ticket) -> Option<Presence> {
        let slot = self
            .slots
            .get_mut(ticket.slot as usize)
            .filter(|slot| slot.generation == ticket.generation)?;
        let presence = slot.presence.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(ticket.slot);
        Some(presence)
    }
}

/// Moments that are all the same time away: the first to be put in is the first to be due.
#[derive(Debug)]
pub(super) struct Alarms {
    after: Duration,
    queue: VecDeque<(Moment, Ticket)>,
}

impl Alarms {
    /// Each is due `after` it was set.
    pub(super) fn new(after: Duration) -> Self {
        Self {
            after,
            queue: VecDeque::new(),
        }
    }

    /// How long after being set one is due.
    pub(super) const fn after(&self) -> Duration {
        self.after
    }

    /// Sets one.
    pub(super) fn set(&mut self, ticket: Ticket, now: Moment) {
        self.queue.push_back((now + self.after, ticket));
    }

    /// When the next is due; [`Moment::NEVER`]: none is.
    pub(super) fn next_due(&self) -> Moment {
        self.queue.front().map_or(Moment::NEVER, |(due, _)| *due)
    }

    /// The one that [`Self::next_due`] spoke of. Its presence may be over.
    pub(super) fn pop(&mut self) -> Option<Ticket> {
        self.queue.pop_front().map(|(_, ticket)| ticket)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_names_one_presence_and_not_the_next_in_its_slot() {
        let mut presences = Presences::default();
        let first = presences.take(1, Moment::ZERO);
        assert_eq!(presences.get(first).unwrap().device, 1);
        assert_eq!(presences.end(first).unwrap().device, 1);
        assert!(presences.get(first).is_none() && presences.end(first).is_none());
        let second = presences.take(2, Moment::ZERO);
        assert_eq!(second.slot, first.slot);
        assert!(presences.get(first).is_none() && presences.end(first).is_none());
        assert_eq!(presences.get(second).unwrap().device, 2);
    }
}
