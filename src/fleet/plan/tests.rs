use std::time::Duration;

use super::*;
use crate::admission::{self, gate};
use crate::fleet::mix::Mix;
use crate::reconnect::Policy;

/// 400 devices for each login a second that the broker bears, as 200,000 in front of 500; the ratio is what counts.
const DEVICES: u32 = 8000;
const CAPACITY: f64 = 20.0;

fn scenario(policy: Policy) -> Scenario {
    Scenario {
        fleet: Fleet {
            devices: DEVICES,
            mix: Mix::all(policy),
            ..Fleet::default()
        },
        outage: Outage {
            pattern: Pattern::Tower,
            lasts: Duration::from_mins(5),
            over: Duration::ZERO,
        },
        round_trip: Duration::from_millis(50),
        broker: Broker {
            capacity: CAPACITY,
            ..Broker::default()
        },
        proxy: None,
        watched: Duration::from_mins(20),
        seed: 1,
    }
}

/// Set by docs/operations.md for this broker and this fleet.
fn proxy() -> ProxySettings {
    ProxySettings {
        admission: admission::Settings {
            rate: CAPACITY,
            burst: CAPACITY,
            max_in_flight: 4,
            max_wait: Duration::from_millis(14_500),
            ..admission::Settings::default()
        },
        gate: gate::Settings {
            max_in_flight: 1000,
            max_waiting: 20_000,
            full: None,
            resumed: None,
        },
        refusal_delay: Duration::ZERO,
        max_delayed: 20_000,
        tells_retry_after: true,
        connack_timeout: Duration::from_secs(30),
        cores: 2,
        costs: Costs::default(),
    }
}

fn proxied(policy: Policy) -> Scenario {
    Scenario {
        proxy: Some(proxy()),
        ..scenario(policy)
    }
}

fn ran(scenario: &Scenario) -> Outcome {
    run(scenario).unwrap()
}

/// Every knock has one outcome, and nothing comes from nowhere.
fn assert_books(outcome: &Outcome) {
    let Sums {
        knocks,
        shed,
        refused,
        broken,
        gave_up,
        sent,
        logins,
        wasted,
        ..
    } = outcome.sums;
    assert_eq!(logins, u64::from(outcome.returned));
    let ended = shed + refused + gave_up + logins + broken;
    // Those that are neither back nor between two attempts at the end.
    let open = knocks.abs_diff(ended);
    assert!(knocks >= ended || broken > 0, "{knocks} knocks, {ended} outcomes");
    assert!(
        open <= u64::from(outcome.devices - outcome.returned) + broken,
        "{open} open"
    );
    assert!(logins + wasted <= sent);
}

#[test]
fn without_a_proxy_the_fleet_drowns_its_broker() {
    for policy in [Policy::Fixed, Policy::Exponential, Policy::FullJitter] {
        let outcome = ran(&scenario(policy));
        assert!(outcome.goodput < 0.1, "{policy}: {}", outcome.goodput);
        assert!(outcome.returned < DEVICES / 5, "{policy}: {}", outcome.returned);
        assert!(
            outcome.sums.wasted > 5 * outcome.sums.logins,
            "{policy}: {:?}",
            outcome.sums
        );
        assert_books(&outcome);
    }
}

#[test]
fn with_a_proxy_the_broker_does_what_those_who_knock_can_fill() {
    for policy in [Policy::Fixed, Policy::Exponential, Policy::FullJitter] {
        let outcome = ran(&proxied(policy));
        assert!(outcome.used >= 0.95, "{policy}: {}", outcome.used);
        assert!(outcome.peak_queued <= 4, "{policy}: {}", outcome.peak_queued);
        assert!(
            outcome.sums.wasted * 100 < outcome.sums.logins,
            "{policy}: {:?}",
            outcome.sums
        );
        assert_books(&outcome);
    }
}

#[test]
fn whoever_heeds_what_it_is_told_knocks_little_more_than_twice() {
    let mut scenario = proxied(Policy::FullJitter);
    scenario.fleet.v5 = 1.0;
    scenario.fleet.heeding = 1.0;
    let outcome = ran(&scenario);
    assert!(outcome.all_back(), "{}", outcome.returned);
    let ideal = f64::from(DEVICES) / CAPACITY;
    let all = outcome.back[3].unwrap();
    assert!(all < 1.9 * ideal, "{all}");
    assert!(outcome.attempts[1] <= 3, "{:?}", outcome.attempts);
}

#[test]
fn the_same_seed_gives_the_same_run_and_another_one_another() {
    let scenario = Scenario {
        watched: Duration::from_mins(2),
        ..proxied(Policy::FullJitter)
    };
    let first = ran(&scenario);
    assert_eq!(ran(&scenario), first);
    assert_ne!(ran(&Scenario { seed: 2, ..scenario }), first);
}

#[test]
fn a_broker_that_bears_all_has_them_back_at_once() {
    for proxy in [None, Some(proxy())] {
        let mut scenario = scenario(Policy::Fixed);
        scenario.broker.capacity = 1e5;
        scenario.proxy = proxy.map(|mut proxy| {
            proxy.admission.rate = 1e5;
            proxy.admission.burst = 1e5;
            proxy.admission.max_in_flight = 1000;
            proxy
        });
        let outcome = ran(&scenario);
        assert!(outcome.all_back());
        assert!(outcome.back[3].unwrap() < 2.0, "{:?}", outcome.back);
        assert_eq!(outcome.attempts, [1, 1, 1]);
        assert_books(&outcome);
    }
}

#[test]
fn patterns_are_what_they_say() {
    let settings = |pattern, over| {
        let mut scenario = proxied(Policy::FullJitter);
        scenario.fleet.devices = 2000;
        scenario.broker.capacity = 1e4;
        let mut proxy = proxy();
        proxy.admission.rate = 1e4;
        proxy.admission.burst = 1e4;
        proxy.admission.max_in_flight = 1000;
        scenario.proxy = Some(proxy);
        scenario.outage = Outage {
            pattern,
            lasts: Duration::from_mins(1),
            over: Duration::from_secs(over),
        };
        ran(&scenario)
    };
    let knocks = |outcome: &Outcome, from: usize, to: usize| -> u32 {
        outcome
            .seconds
            .iter()
            .take(to)
            .skip(from)
            .map(|second| second.knocks)
            .sum()
    };
    let cold = settings(Pattern::Cold, 20);
    assert_eq!(knocks(&cold, 0, 60), 0);
    assert_eq!(knocks(&cold, 60, 81), 2000, "all boot within 20 s");

    let tower = settings(Pattern::Tower, 0);
    assert_eq!(knocks(&tower, 0, 60), 0, "nobody is heard");
    assert!(tower.all_back());

    let rolling = settings(Pattern::Rolling, 100);
    assert!(knocks(&rolling, 60, 100) > 0 && knocks(&rolling, 140, 400) > 0);
    assert!(rolling.all_back());

    let broker = settings(Pattern::Broker, 0);
    assert!(knocks(&broker, 0, 60) > 2000, "the front is there");
    assert!(broker.sums.refused > 0 && broker.all_back());
    assert_eq!(
        broker
            .seconds
            .iter()
            .take(60)
            .map(|second| second.logins)
            .sum::<u32>(),
        0
    );
}

#[test]
fn too_few_places_for_handshakes_are_seen() {
    let mut scenario = proxied(Policy::Fixed);
    let mut few = proxy();
    few.gate.max_in_flight = 1;
    few.gate.max_waiting = 50;
    scenario.proxy = Some(few);
    scenario.watched = Duration::from_mins(2);
    let outcome = ran(&scenario);
    assert!(
        outcome.sums.shed > 100 * outcome.sums.refused,
        "{:?}",
        outcome.sums
    );
    assert_books(&outcome);
}

#[test]
fn impatience_that_no_network_satisfies_is_refused() {
    let mut scenario = scenario(Policy::Fixed);
    scenario.fleet.patience = Duration::from_millis(150);
    assert!(run(&scenario).is_err());
}
