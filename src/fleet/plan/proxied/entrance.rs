//! What comes before the CONNECT: the gate, the threads for handshakes, and the round trip that a handshake waits for its
//! client.

use std::cmp::Reverse;

use super::super::presence::{Stage, Ticket};
use super::super::world::World;
use super::{Proxy, micros};
use crate::admission::gate::{self, Class};
use crate::moment::Moment;

impl Proxy {
    /// A device knocks: its ClientHello is whole.
    pub(in super::super) fn knock(&mut self, world: &mut World, now: Moment) {
        let Some(number) = world.knock(now) else {
            return;
        };
        let ticket = world.presences.take(number, now);
        // Accepted a round trip ago.
        let accepted = now.as_nanos().saturating_sub(world.round_trip.as_nanos() as u64);
        let class = world.fleet.class(number);
        match self
            .gate
            .enter(class, Moment::from_nanos(accepted), |_| ticket, now)
        {
            gate::Verdict::Place(place) => self.handshake(ticket, place, class, world, now),
            gate::Verdict::Wait(spot) => {
                world.presences.put(ticket, Stage::AtGate(spot));
                self.release_gate(world, now);
            }
            gate::Verdict::Turned(_) => self.shed(ticket, world, now),
        }
        if world.presences.get(ticket).is_some() {
            world.wait(ticket, now);
        }
    }

    fn handshake(
        &mut self,
        ticket: Ticket,
        place: gate::Place,
        class: Class,
        world: &mut World,
        now: Moment,
    ) {
        let cost = match class {
            Class::Full => self.costs.full,
            Class::Resumed => self.costs.resumed,
        };
        let free = self.threads.pop().map_or(now, |Reverse(free)| free.max(now));
        let done = free + cost;
        self.threads.push(Reverse(done));
        self.handshakes.push(Reverse((done + world.round_trip, ticket)));
        world.presences.put(ticket, Stage::Handshake(place));
        world.tally.at(now).cpu_us += micros(cost);
    }

    pub(super) fn handshake_done(&mut self, world: &mut World, now: Moment) {
        let Some(Reverse((_, ticket))) = self.handshakes.pop() else {
            return;
        };
        // One whose place was taken away is over.
        let Stage::Handshake(place) = world.presences.leave_stage(ticket) else {
            return;
        };
        self.gate.finish(place, gate::Outcome::Used, now);
        self.release_gate(world, now);
        let Some(presence) = world.presences.get(ticket) else {
            return;
        };
        if presence.left {
            world.presences.end(ticket);
            return;
        }
        presence.since = now;
        self.decide(ticket, None, world, now);
    }

    fn shed(&mut self, ticket: Ticket, world: &mut World, now: Moment) {
        let Some(presence) = world.presences.end(ticket) else {
            return;
        };
        let cpu = micros(self.costs.shed);
        let second = world.tally.at(now);
        second.shed += 1;
        second.cpu_us += cpu;
        world.try_again(presence.device, None, now);
    }

    pub(super) fn release_gate(&mut self, world: &mut World, now: Moment) {
        while let Some(released) = self.gate.release(now) {
            match released {
                gate::Released::Place { waiter, place } => {
                    let device = world.presences.get(waiter).map(|presence| presence.device);
                    let class = device.map_or(Class::Full, |device| world.fleet.class(device));
                    self.handshake(waiter, place, class, world, now);
                }
                gate::Released::Turned { waiter, .. } => self.shed(waiter, world, now),
                gate::Released::Revoked(number) => self.revoke(number, world, now),
            }
        }
        self.gate_due = self.gate.next_release(now).unwrap_or(Moment::NEVER);
    }

    /// The slowest handshake loses its place. There are no more of them than places, and it is rare.
    fn revoke(&mut self, number: u64, world: &mut World, now: Moment) {
        let tickets = self.handshakes.iter().map(|Reverse((_, ticket))| *ticket);
        let slowest = tickets.into_iter().find(|ticket| {
            world.presences.get(*ticket).is_some_and(
                |presence| matches!(&presence.stage, Stage::Handshake(place) if place.number() == number),
            )
        });
        let Some(ticket) = slowest else { return };
        if let Some(presence) = world.presences.end(ticket)
            && let Stage::Handshake(place) = presence.stage
        {
            self.gate.finish(place, gate::Outcome::Used, now);
            if !presence.left {
                world.tally.at(now).broken += 1;
                world.try_again(presence.device, None, now);
            }
        }
    }
}
