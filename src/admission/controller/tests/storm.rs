//! Fleets in virtual time: what the parts together make of a storm.

mod fleet;

use std::time::Duration;

use self::fleet::{Plan, Retry, STORM, Storm};
use crate::admission::{Settings, adaptive, clients};

fn at_rate(rate: f64, burst: f64) -> Settings {
    Settings {
        rate,
        burst,
        max_in_flight: 10_000,
        max_wait: Duration::ZERO,
        ..Settings::default()
    }
}

#[test]
fn strangers_that_never_return_get_the_configured_rate() {
    let plan = Plan {
        devices: 2000,
        within: 20.0,
        retry: Retry::Fixed(1e6),
        until: 20.0,
        ..STORM
    };
    let storm = Storm::run(at_rate(50.0, 50.0), plan);
    assert!(
        (1018..=1050).contains(&storm.reached.len()),
        "{}",
        storm.reached.len()
    );
}

/// 1,500 devices on an exact 5 s timer at 50 a second: ideal is 30 s, 33 s were measured on a prototype, 146 s without
/// a hold and with a bucket of 10.
#[test]
fn a_hold_serves_a_fleet_in_lockstep() {
    let hold = Settings {
        max_wait: Duration::from_secs(4),
        ..at_rate(50.0, 10.0)
    };
    let all_in = Storm::run(
        hold,
        Plan {
            devices: 1500,
            ..STORM
        },
    )
    .all_in()
    .unwrap();
    assert!(all_in <= 38.0, "{all_in}");
    let refuse = Storm::run(
        at_rate(50.0, 10.0),
        Plan {
            devices: 1500,
            ..STORM
        },
    )
    .all_in()
    .unwrap();
    assert!(refuse >= 140.0, "{refuse}");
}

#[test]
fn a_fleet_that_keeps_its_appointments_comes_back_in_devices_over_rate() {
    for max_wait in [0, 4] {
        let settings = Settings {
            max_wait: Duration::from_secs(max_wait),
            ..at_rate(200.0, 200.0)
        };
        let storm = Storm::run(
            settings,
            Plan {
                devices: 8000,
                retry: Retry::Told,
                within: 0.5,
                ..STORM
            },
        );
        let all_in = storm.all_in().unwrap();
        let attempts = storm
            .devices
            .iter()
            .map(|device| f64::from(device.attempts))
            .sum::<f64>()
            / 8000.0;
        assert!(all_in <= 1.05 * 8000.0 / 200.0, "{all_in}");
        assert!(attempts <= 2.1, "{attempts}");
    }
}

/// The same with an adaptive rate in front of a broker that serves 80 a second.
#[test]
fn appointments_follow_the_pace_of_the_broker() {
    let adaptive = adaptive::Settings {
        enabled: true,
        ..adaptive::Settings::default()
    };
    let settings = Settings {
        adaptive,
        ..at_rate(200.0, 200.0)
    };
    let plan = Plan {
        devices: 4000,
        retry: Retry::Told,
        within: 0.5,
        service: 0.0125,
        ..STORM
    };
    let storm = Storm::run(settings, plan);
    let all_in = storm.all_in().unwrap();
    assert!(all_in <= 1.3 * 4000.0 / 80.0, "{all_in}");
}

/// Nobody starves: under three times the load that can be served, with random retries, the slowest in a thousand needs
/// at most three times the median.
#[test]
fn the_unluckiest_wait_three_medians_at_most() {
    // A fleet that comes at once; 4,000 devices that retry every 16.7 s on average are 240 a second.
    let at_once = Plan {
        devices: 4000,
        retry: Retry::Random(33.3),
        within: 1.0,
        ..STORM
    };
    // Newcomers at three times the rate for 30 s.
    let newcomers = Plan {
        devices: 7200,
        retry: Retry::Random(20.0),
        within: 30.0,
        ..STORM
    };
    for (name, plan) in [("at once", at_once), ("newcomers", newcomers)] {
        for max_wait in [0, 2] {
            let settings = Settings {
                max_wait: Duration::from_secs(max_wait),
                ..at_rate(80.0, 80.0)
            };
            let storm = Storm::run(settings, plan);
            let waits = storm.waits();
            let (median, slowest) = (waits[waits.len() / 2], waits[waits.len() * 999 / 1000]);
            assert!(slowest <= 3.0 * median, "{name}, {max_wait}: {median} {slowest}");
        }
    }
}

/// A slow broker, nothing told about its capacity, a fleet in lockstep with a patience of 5 s.
#[test]
fn adaptive_and_hold_bring_a_fleet_in_at_the_brokers_capacity() {
    let adaptive = adaptive::Settings {
        enabled: true,
        ..adaptive::Settings::default()
    };
    let settings = Settings {
        adaptive,
        max_wait: Duration::from_secs(4),
        max_in_flight: 100,
        ..at_rate(200.0, 200.0)
    };
    let storm = Storm::run(
        settings,
        Plan {
            devices: 2000,
            service: 0.0125,
            ..STORM
        },
    );
    let all_in = storm.all_in().unwrap();
    assert!(all_in <= 1.3 * 2000.0 / 80.0, "{all_in}");
    assert!(storm.most_in_flight <= 4, "{}", storm.most_in_flight);
}

#[test]
fn a_hot_loop_with_wrong_passwords_reaches_the_broker_rarely() {
    let plan = Plan {
        devices: 300,
        retry: Retry::Fixed(0.05),
        code: 5,
        until: 60.0,
        ..STORM
    };
    let storm = Storm::run(at_rate(200.0, 200.0), plan);
    for second in 10..60 {
        let reached = storm.reached_between(f64::from(second), f64::from(second) + 1.0);
        assert!(reached < 5, "{reached} in second {second}");
    }
    assert!(storm.reached.len() > 900);
}

#[test]
fn a_limit_by_client_id_holds_in_a_hot_loop() {
    let per_client = clients::Settings {
        rate: 0.1,
        burst: 1.0,
    };
    let settings = Settings {
        per_client,
        ..at_rate(200.0, 200.0)
    };
    let storm = Storm::run(
        settings,
        Plan {
            devices: 10,
            retry: Retry::Fixed(0.05),
            code: 1,
            until: 100.0,
            ..STORM
        },
    );
    assert!(
        (100..=110).contains(&storm.reached.len()),
        "{}",
        storm.reached.len()
    );
}
