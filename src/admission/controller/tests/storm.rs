//! Fleets in virtual time: what the parts together make of a storm.

mod fleet;

use std::time::Duration;

use self::fleet::{Others, Plan, Retry, STORM, Storm};
use crate::admission::lanes::{Glob, Lane, Members};
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

/// 1,500 devices on an exact 5 s timer at 50 a second with a bucket of 10: ideal is 30 s. Without a hold only those
/// are served who find a token and, for two seconds, those who are due.
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
    assert!((60.0..80.0).contains(&refuse), "{refuse}");
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
    let storm = Storm::run(
        following(),
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

/// Follows the broker from the defaults on.
fn following() -> Settings {
    let adaptive = adaptive::Settings {
        enabled: true,
        ..adaptive::Settings::default()
    };
    Settings {
        adaptive,
        max_wait: Duration::from_secs(4),
        max_in_flight: 100,
        ..at_rate(200.0, 200.0)
    }
}

/// Those without a reserve never fill the window, of which the lane's part is kept: they are the ones who must be
/// seen to want more.
#[test]
fn the_law_finds_the_knee_beside_lanes_that_stay_away() {
    let tablets = Lane {
        name: "tablets".to_owned(),
        label: 0,
        members: Members {
            client_id: Some(Glob::new("tablet-*")),
            ..Members::default()
        },
        reserve: 30.0,
        priority: 1,
    };
    for (workers, service) in [(1, 0.0125), (20, 0.1)] {
        let capacity = workers as f64 / service;
        let settings = Settings {
            lanes: vec![tablets.clone()],
            ..following()
        };
        let plan = Plan {
            devices: 4000,
            retry: Retry::Random(5.0),
            service,
            workers,
            ..STORM
        };
        let storm = Storm::run(settings, plan);
        let used = storm.reached_between(5.0, 15.0) as f64 / (10.0 * capacity);
        assert!(used >= 0.9, "{workers}: {used}");
        assert!(
            storm.most_in_flight <= 2 * workers as u32 + 4,
            "{}",
            storm.most_in_flight
        );
    }
}

/// While slow start holds the crowd back the broker has shown nothing: the rate waits, instead of shrinking round by
/// round to what little comes.
#[test]
fn the_law_is_not_misled_by_a_slow_start() {
    for (workers, service) in [(1, 0.0125), (1, 0.002), (20, 0.1)] {
        let capacity = workers as f64 / service;
        let plan = Plan {
            devices: (60.0 * capacity) as usize,
            retry: Retry::Random(5.0),
            service,
            workers,
            outage: (10.0, 13.0),
            until: 40.0,
            ..STORM
        };
        let storm = Storm::run(following(), plan);
        // Open at 10, a probe at 12, and at 16; full again at 26.
        assert!(
            storm.reached_between(10.1, 16.0) <= 2,
            "{capacity}: dials while open"
        );
        let used = |from: f64, to: f64| storm.reached_between(from, to) as f64 / (capacity * (to - from));
        let figures = format!(
            "{capacity}: {:.2} {:.2} {:.2} {:.2} {:.2}",
            used(5.0, 10.0),
            used(16.0, 17.0),
            used(18.0, 21.0),
            used(21.0, 26.0),
            used(26.0, 31.0)
        );
        assert!(used(16.0, 17.0) <= 0.3, "a crowd: {figures}");
        assert!(used(18.0, 21.0) >= 0.25, "it shrinks: {figures}");
        assert!(used(26.0, 31.0) >= 0.9, "{figures}");
    }
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

/// Who comes a moment late has its place all the same, whatever the bucket saves up: the end is late by one lateness and
/// not by one for each, and nobody comes three times. Nor do those who do not listen, or who never come again, spoil it.
#[test]
fn a_late_fleet_has_its_places() {
    let others = |in_ten, retry| Some(Others { in_ten, retry });
    let neighbours = [
        (0.1, None),
        (2.0, None),
        (0.1, others(3, Retry::Fixed(0.2))),
        (2.0, others(3, Retry::Random(5.0))),
        (0.5, others(3, Retry::Never)),
    ];
    for (rate, burst, devices) in [(40.0, 1.0, 600), (200.0, 1.0, 2000), (200.0, 200.0, 2000)] {
        for max_wait in [0, 4] {
            for (late, others) in neighbours {
                let settings = Settings {
                    max_wait: Duration::from_secs(max_wait),
                    ..at_rate(rate, burst)
                };
                let plan = Plan {
                    devices,
                    retry: Retry::Told,
                    others,
                    late,
                    within: 0.5,
                    until: 60.0,
                    ..STORM
                };
                let (all_in, attempts) = Storm::run(settings, plan).obedient();
                let name =
                    format!("{rate}/s, burst {burst}, wait {max_wait}, late {late}: {all_in}, {attempts}");
                assert!(all_in <= 1.02 * devices as f64 / rate + late, "{name}");
                assert!(attempts <= 2.0, "{name}");
            }
        }
    }
}

/// Tablets with a reserve are told when their reserve has room, not when the sensors are through, and the sensors
/// when what is shared has.
#[test]
fn each_bucket_keeps_its_own_appointments() {
    let tablets = Lane {
        name: "tablets".into(),
        label: 0,
        members: Members {
            client_id: Some(Glob::new("tablet-*")),
            ..Members::default()
        },
        reserve: 50.0,
        priority: 1,
    };
    for (max_wait, late) in [(0, 0.05), (0, 1.0), (4, 0.3)] {
        let settings = Settings {
            max_wait: Duration::from_secs(max_wait),
            lanes: vec![tablets.clone()],
            ..at_rate(200.0, 60.0)
        };
        let plan = Plan {
            devices: 3200,
            tablets: 200,
            retry: Retry::Told,
            within: 0.5,
            late,
            ..STORM
        };
        let storm = Storm::run(settings, plan);
        let tablets = storm.devices[..200].iter().map(|device| device.done.unwrap());
        let tablets = tablets.fold(0.0, f64::max);
        assert!(tablets <= 200.0 / 50.0 + late, "{tablets}");
        let (all_in, attempts) = storm.obedient();
        assert!(all_in <= 1.05 * 3000.0 / 150.0 + late, "{all_in}");
        assert!(attempts <= 2.1, "{attempts}");
    }
}

/// What is kept for those who never come is a part of the bucket, not of the rate: newcomers get all of that.
#[test]
fn nothing_is_wasted_on_those_who_never_come() {
    for (burst, max_wait) in [(10.0, 0), (50.0, 0), (1.0, 4)] {
        let settings = Settings {
            max_wait: Duration::from_secs(max_wait),
            ..at_rate(50.0, burst)
        };
        let plan = Plan {
            devices: 6000,
            within: 30.0,
            retry: Retry::Never,
            until: 30.0,
            ..STORM
        };
        let reached = Storm::run(settings, plan).reached.len();
        assert!(
            reached as f64 >= 0.99 * 50.0 * 30.0,
            "{burst} {max_wait}: {reached}"
        );
    }
}
