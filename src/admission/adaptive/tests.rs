#![expect(clippy::float_cmp, reason = "clamped values are exact")]

mod trial;

use super::*;
use trial::{Backend, Trial};

fn at(milliseconds: u64) -> Moment {
    Moment::ZERO + Duration::from_millis(milliseconds)
}

fn enabled() -> Settings {
    Settings {
        enabled: true,
        ..Settings::default()
    }
}

fn fresh() -> Adaptive {
    Adaptive::new(enabled(), 200.0, 100, Moment::ZERO)
}

#[test]
fn it_begins_with_one_in_flight_and_a_legal_rate() {
    assert_eq!((fresh().window(), fresh().rate()), (1, 200.0));
    assert_eq!(Adaptive::new(enabled(), 1.0, 100, at(0)).rate(), 5.0);
    assert_eq!(Adaptive::new(enabled(), 1e9, 100, at(0)).rate(), 5000.0);
}

#[test]
fn every_sign_of_overload_halves_once_a_round() {
    for code in [3, 0x88, 0x89, 0x97] {
        let mut adaptive = fresh();
        adaptive.window = 40.0;
        for _ in 0..5 {
            adaptive.answered(code, Duration::from_millis(1), true, at(1));
        }
        assert_eq!((adaptive.window(), adaptive.rate()), (20, 100.0), "{code:#x}");
    }
    let mut adaptive = fresh();
    adaptive.window = 40.0;
    adaptive.failed(at(1));
    assert_eq!((adaptive.window(), adaptive.rate()), (20, 100.0));
    for code in [0, 4, 5, 0x86, 0x87, 1, 2] {
        let mut adaptive = fresh();
        adaptive.answered(code, Duration::from_millis(1), true, at(1));
        assert_eq!(adaptive.rate(), 200.0, "{code:#x}");
    }
}

#[test]
fn it_holds_still_when_idle() {
    let mut adaptive = fresh();
    adaptive.window = 12.0;
    adaptive.starting = false;
    for second in 1..1000 {
        adaptive.answered(0, Duration::from_millis(20), false, at(second * 1000));
    }
    assert_eq!((adaptive.window(), adaptive.rate()), (12, 200.0));
}

#[test]
fn the_limits_hold() {
    let narrow = Settings {
        min_rate: 50.0,
        max_rate: 60.0,
        ..enabled()
    };
    let mut adaptive = Adaptive::new(narrow, 55.0, 4, at(0));
    for step in 0..1000 {
        adaptive.answered(0, Duration::from_micros(10), true, at(step));
        assert!(adaptive.window() <= 4 && (50.0..=60.0).contains(&adaptive.rate()));
    }
    for step in 0..1000 {
        adaptive.failed(at(1000 + step));
        adaptive.answered(0, Duration::from_secs(10), true, at(1000 + step));
        assert!(adaptive.window() >= 1 && (50.0..=60.0).contains(&adaptive.rate()));
    }
    adaptive.reconfigure(
        Settings {
            max_rate: 10.0,
            min_rate: 1.0,
            ..enabled()
        },
        2,
    );
    assert!(adaptive.window() <= 2 && adaptive.rate() <= 10.0);
}

/// The storm of a fleet that always has somebody waiting, on brokers of different kinds.
#[test]
fn it_finds_the_knee_of_every_broker() {
    for (name, backend) in trial::BROKERS {
        let figures = Trial::of(backend, &mut fresh(), 60.0);
        assert!(trial::is_good(backend, &figures), "{name}: {figures:?}");
    }
}

#[test]
fn it_follows_a_broker_that_halves_and_recovers() {
    let single = Backend {
        servers: 1,
        service: 0.0125,
        spread: 0.1,
    };
    let mut adaptive = fresh();
    let mut trial = Trial::new(single);
    let before = trial.run(&mut adaptive, 20.0);
    let rate = adaptive.rate();
    trial.backend.service *= 2.0;
    let halved = trial.run(&mut adaptive, 20.0);
    assert!(
        (55.0..=70.0).contains(&adaptive.rate()),
        "follows: {}",
        adaptive.rate()
    );
    trial.backend.service /= 2.0;
    let after = trial.run(&mut adaptive, 20.0);
    for figures in [&before, &halved, &after] {
        assert!(figures.used >= 0.95 && figures.excess_p99 <= 5.0, "{figures:?}");
    }
    assert!(
        (adaptive.rate() / rate - 1.0).abs() < 0.1,
        "recovers: {} {}",
        adaptive.rate(),
        rate
    );
}

/// The figures of `docs/decisions/0006-adaptive-law.md`: every other law fails one of the brokers.
#[test]
fn its_rivals_fail_one_broker_at_least() {
    let (table, good) = trial::table();
    println!("{table}");
    assert_eq!(good, [false, false, false, false, true], "{table}");
}
