//! Devices that connect to the broker itself. Its TLS costs nothing here and takes no time, which is in its favour.

use super::presence::Stage;
use super::world::World;
use crate::moment::Moment;

/// A device knocks.
pub(super) fn knock(world: &mut World, now: Moment) {
    let Some(number) = world.knock(now) else {
        return;
    };
    let ticket = world.presences.take(number, now);
    if world.broker.enter(ticket, now).is_err() {
        world.presences.end(ticket);
        world.tally.at(now).broken += 1;
        world.try_again(number, None, now);
        return;
    }
    world.presences.put(ticket, Stage::Queued);
    world.tally.at(now).sent += 1;
    world.note_broker(now);
    world.wait(ticket, now);
}

/// A login is done.
pub(super) fn answer(world: &mut World, now: Moment) {
    let Some(ticket) = world.broker.pop() else {
        return;
    };
    match world.presences.end(ticket) {
        Some(presence) => world.connected(presence.device, now),
        None => world.tally.at(now).wasted += 1,
    }
}

/// The patience of a device is over.
pub(super) fn give_up(world: &mut World, now: Moment) {
    let Some(ticket) = world.end_of_patience() else {
        return;
    };
    if let Some(presence) = world.presences.end(ticket) {
        world.tally.at(now).gave_up += 1;
        world.try_again(presence.device, None, now);
    }
}
