//! A fleet and its broker in virtual time: no socket, no clock, the same `reconnect` and the same `admission` as on the
//! wire, up to ten million devices.
//!
//! A [`Scenario`] says what happens, `run` makes an [`Outcome`] of it. Time goes from event to event: a device knocks
//! (`wheel`), a handshake or a login is done (`proxied`, `broker`), a patience ends (`presence`), somebody's turn
//! comes. What is left out, and in whose favour that is: `docs/validation.md`.

pub mod advice;
mod bare;
mod broker;
pub mod charts;
mod device;
mod outcome;
pub mod page;
mod presence;
mod proxied;
mod report;
mod scenario;
mod sweep;
mod tally;
mod wheel;
mod world;

use self::outcome::HUNDREDTHS;
pub use self::outcome::{Outcome, Second, Sums};
use self::proxied::{Due, Proxy};
pub use self::report::Table;
pub use self::scenario::{
    Broker, Costs, Fleet, Outage, Pattern, Proxy as ProxySettings, Resumption, Scenario, ScenarioError,
};
pub use self::sweep::Sweep;
use self::world::World;
use crate::moment::Moment;

/// What happens next. At the same moment, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    /// The broker is done with a login.
    Login,
    /// Within the proxy.
    Proxy(Due),
    /// A device gives up.
    Patience,
    /// A device knocks.
    Knock,
}

/// Runs a scenario to its end: all are back, or the time is over.
pub fn run(scenario: &Scenario) -> Result<Outcome, ScenarioError> {
    let mut world = World::new(scenario)?;
    let mut proxy = scenario
        .proxy
        .as_ref()
        .map(|settings| Proxy::new(settings, scenario.fleet.persistent, scenario.seed));
    let mut end = Moment::ZERO;
    while world.returned < world.fleet.len() {
        let (now, event) = next(&mut world, proxy.as_ref());
        if now > world.until {
            end = world.until;
            break;
        }
        end = now;
        match (&mut proxy, event) {
            (None, Event::Login) => bare::answer(&mut world, now),
            (None, Event::Patience) => bare::give_up(&mut world, now),
            (None, Event::Knock) => bare::knock(&mut world, now),
            (Some(proxy), Event::Login) => proxy.answer(&mut world, now),
            (Some(proxy), Event::Patience) => proxy.give_up(&mut world, now),
            (Some(proxy), Event::Knock) => proxy.knock(&mut world, now),
            (Some(proxy), Event::Proxy(due)) => proxy.go_on(due, &mut world, now),
            // There is no proxy that could have an event.
            (None, Event::Proxy(_)) => break,
        }
    }
    Ok(outcome(world, scenario, end))
}

fn next(world: &mut World, proxy: Option<&Proxy>) -> (Moment, Event) {
    let (due, what) = proxy.map_or((Moment::NEVER, Due::Release), Proxy::next_due);
    let mut first = (world.broker.next_done(), Event::Login);
    for other in [
        (due, Event::Proxy(what)),
        (world.next_end_of_patience(), Event::Patience),
        (world.next_knock(), Event::Knock),
    ] {
        if other.0 < first.0 {
            first = other;
        }
    }
    first
}

fn outcome(mut world: World, scenario: &Scenario, end: Moment) -> Outcome {
    let devices = u64::from(scenario.fleet.devices);
    let returned = u64::from(world.returned);
    let lasted = end.since(world.back_at).as_secs_f64();
    let fillable = world.tally.fillable.served(end);
    let tally = &world.tally;
    let back = HUNDREDTHS.map(|hundredths| {
        let needed = (devices * hundredths).div_ceil(100);
        tally.back(needed).map(|after| after.as_secs_f64())
    });
    let attempts = [returned.div_ceil(2), (returned * 99).div_ceil(100), returned]
        .map(|rank| tally.attempts_of(rank).unwrap_or(0));
    let sums = Sums::of(&tally.seconds);
    let most = |of: fn(&Second) -> u64| tally.seconds.iter().map(of).max().unwrap_or(0);
    Outcome {
        devices: scenario.fleet.devices,
        returned: world.returned,
        back,
        attempts,
        sums,
        goodput: share(sums.logins as f64, scenario.broker.capacity * lasted),
        used: share(sums.logins as f64, fillable),
        peak_queued: most(|second| u64::from(second.queued)) as u32,
        peak_knocks: most(|second| u64::from(second.knocks)) as u32,
        peak_cores: most(|second| second.cpu_us) as f64 / 1e6,
        outage: world.back_at.since(Moment::ZERO).as_secs_f64(),
        lasted,
        seconds: world.tally.seconds,
    }
}

/// 0 of nothing.
fn share(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

#[cfg(test)]
mod tests;
