mod broken;
mod composed;
mod places;
mod storm;

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::admission::bucket::{Bucket, Tokens};
use crate::admission::classify::Classifier;
use crate::admission::{Cost, Request};
use crate::mqtt::Version;

fn settings() -> Settings {
    Settings {
        rate: 10.0,
        burst: 1.0,
        max_in_flight: 1000,
        max_wait: Duration::from_secs(1),
        max_held: 100,
        ..Settings::default()
    }
}

fn at(milliseconds: u64) -> Moment {
    Moment::from_nanos(milliseconds * 1_000_000)
}

/// Nothing is remembered of one without a client id.
const CLEAN: Request<'_> = Request {
    client_id: "",
    username: None,
    password: None,
    common_name: None,
    server_name: None,
    source: None,
    version: Version::V3_1_1,
    persistent: false,
};
const ANSWERED: Outcome = Outcome::Answered {
    code: 0,
    latency: Duration::ZERO,
};

/// Waiters are numbers.
struct Stage {
    classifier: Classifier,
    controller: Controller<u32>,
    next: u32,
}

/// What `Stage::knock` saw.
#[derive(Debug)]
enum Seen {
    In(Seat),
    InDespite(Seat, Reason),
    Held(u32, Place),
    Out(Reason),
}

impl Seen {
    fn refused(&self) -> Option<Reason> {
        match self {
            Self::Out(reason) => Some(*reason),
            _ => None,
        }
    }
}

impl Stage {
    fn new(settings: Settings) -> Self {
        Self {
            classifier: Classifier::new(&settings),
            controller: Controller::new(settings, Moment::ZERO),
            next: 0,
        }
    }

    /// Sessions are over at once.
    fn settle(&mut self, seat: Seat, outcome: Outcome, now: Moment) {
        if let Some(session) = self.controller.settle(seat, outcome, now) {
            self.controller.ended(session);
        }
    }

    fn reconfigure(&mut self, settings: Settings, now: Moment) {
        self.classifier = Classifier::new(&settings);
        self.controller.reconfigure(settings, now);
    }

    fn knock(&mut self, now: Moment) -> Seen {
        self.ask(CLEAN, now)
    }

    fn ask(&mut self, request: Request<'_>, now: Moment) -> Seen {
        let number = self.next;
        self.next += 1;
        let arrival = self.classifier.classify(&request);
        match self.controller.decide(&arrival, |_| number, now) {
            Verdict::Admit {
                seat,
                would_refuse: None,
            } => Seen::In(seat),
            Verdict::Admit {
                seat,
                would_refuse: Some(reason),
            } => Seen::InDespite(seat, reason),
            Verdict::Hold { place } => Seen::Held(number, place),
            Verdict::Refuse(refusal) => Seen::Out(refusal.reason),
        }
    }

    fn enter(&mut self, now: Moment) -> Seat {
        let Seen::In(seat) = self.knock(now) else {
            panic!("not admitted")
        };
        seat
    }

    fn hold(&mut self, now: Moment) -> (u32, Place) {
        let Seen::Held(number, place) = self.knock(now) else {
            panic!("not held")
        };
        (number, place)
    }

    /// Runs the release loop from `now` to `until` as the daemon does, without settling anyone.
    fn run(&mut self, now: Moment, until: Moment) -> Vec<(Moment, u32, Option<Seat>)> {
        let mut seen = Vec::new();
        let mut now = now;
        loop {
            while let Some(released) = self.controller.release(now) {
                seen.push(match released {
                    Released::Admitted { waiter, seat } => (now, waiter, Some(seat)),
                    Released::Expired { waiter, refusal } => {
                        assert_eq!(refusal.reason, Reason::HoldExpired);
                        (now, waiter, None)
                    }
                });
            }
            match self.controller.next_release(now) {
                Some(next) if next <= until => {
                    assert!(next > now, "the loop would spin");
                    now = next;
                }
                _ => return seen,
            }
        }
    }
}

#[test]
fn without_hold_the_rest_is_refused_for_its_true_reason() {
    let mut stage = Stage::new(Settings {
        max_wait: Duration::ZERO,
        ..settings()
    });
    let seat = stage.enter(at(0));
    assert_eq!(stage.knock(at(0)).refused(), Some(Reason::Rate));
    assert_eq!(stage.knock(at(99)).refused(), Some(Reason::Rate));
    assert!(matches!(stage.knock(at(100)), Seen::In(_)));
    stage.settle(seat, ANSWERED, at(100));
    assert_eq!(stage.controller.snapshot(at(100)).in_flight, 1);

    let mut stage = Stage::new(Settings {
        max_wait: Duration::ZERO,
        max_in_flight: 1,
        ..settings()
    });
    let seat = stage.enter(at(0));
    assert_eq!(stage.knock(at(500)).refused(), Some(Reason::InFlight));
    stage.settle(seat, Outcome::TimedOut, at(500));
    assert!(matches!(stage.knock(at(500)), Seen::In(_)));
}

#[test]
fn a_wave_is_held_for_as_long_as_tokens_come_in_time() {
    let mut stage = Stage::new(settings());
    let _seat = stage.enter(at(0));
    for number in 1..=10 {
        assert_eq!(stage.hold(at(0)).0, number);
    }
    assert_eq!(
        stage.knock(at(0)).refused(),
        Some(Reason::Rate),
        "its turn is at 1.1 s"
    );
    let released = stage.run(at(0), at(5000));
    let expected: Vec<_> = (1..=10)
        .map(|number| (at(u64::from(number) * 100), number))
        .collect();
    assert_eq!(
        released
            .iter()
            .map(|(now, number, _)| (*now, *number))
            .collect::<Vec<_>>(),
        expected
    );
    assert!(released.iter().all(|(_, _, seat)| seat.is_some()));
}

#[test]
fn places_are_limited() {
    let mut stage = Stage::new(Settings {
        max_held: 2,
        ..settings()
    });
    let _seat = stage.enter(at(0));
    stage.hold(at(0));
    stage.hold(at(0));
    assert_eq!(stage.knock(at(0)).refused(), Some(Reason::HoldFull));
    let mut stage = Stage::new(Settings {
        max_held: 0,
        ..settings()
    });
    let _seat = stage.enter(at(0));
    assert_eq!(stage.knock(at(0)).refused(), Some(Reason::HoldFull));
}

#[test]
fn nobody_overtakes_the_held() {
    let mut stage = Stage::new(settings());
    let _seat = stage.enter(at(0));
    let (first, _) = stage.hold(at(0));
    // The token is there, but the loop has not woken yet.
    let (second, _) = stage.hold(at(100));
    let released = stage.run(at(100), at(200));
    assert_eq!(
        released.iter().map(|entry| entry.1).collect::<Vec<_>>(),
        [first, second]
    );
}

#[test]
fn who_leaves_frees_its_place_and_its_turn() {
    let mut stage = Stage::new(Settings {
        max_held: 2,
        ..settings()
    });
    let _seat = stage.enter(at(0));
    let (_, place) = stage.hold(at(0));
    let (second, _) = stage.hold(at(0));
    stage.controller.withdraw(place, at(50));
    stage.controller.withdraw(place, at(50));
    let (third, _) = stage.hold(at(50));
    let released = stage.run(at(50), at(200));
    assert_eq!(
        released
            .iter()
            .map(|entry| (entry.0, entry.1))
            .collect::<Vec<_>>(),
        [(at(100), second), (at(200), third)]
    );
    stage.controller.withdraw(place, at(200));
}

#[test]
fn a_seat_comes_free_for_the_oldest() {
    let mut stage = Stage::new(Settings {
        max_in_flight: 1,
        burst: 5.0,
        ..settings()
    });
    let seat = stage.enter(at(0));
    let (first, _) = stage.hold(at(0));
    stage.hold(at(1));
    assert!(stage.run(at(1), at(300)).is_empty());
    stage.settle(seat, ANSWERED, at(300));
    let released = stage.run(at(300), at(400));
    assert_eq!(released.len(), 1);
    assert_eq!((released[0].0, released[0].1), (at(300), first));
}

#[test]
fn who_gets_no_seat_in_time_expires_on_its_deadline() {
    let mut stage = Stage::new(Settings {
        max_in_flight: 1,
        burst: 5.0,
        ..settings()
    });
    let seat = stage.enter(at(0));
    let (first, _) = stage.hold(at(0));
    let (second, _) = stage.hold(at(1));
    assert_eq!(stage.run(at(1), at(1000)), [(at(1000), first, None)]);
    stage.settle(seat, ANSWERED, at(1002));
    assert_eq!(
        stage.run(at(1002), at(2000)),
        [(at(1002), second, None)],
        "a nanosecond late is late"
    );
    assert_eq!(stage.controller.snapshot(at(2000)).held, 0);
}

#[test]
fn a_slow_broker_refuses_what_it_cannot_serve_in_time() {
    let mut stage = Stage::new(Settings {
        max_in_flight: 1,
        rate: 1000.0,
        burst: 1000.0,
        ..settings()
    });
    let mut now = 0;
    let mut seat = stage.enter(at(now));
    for _ in 0..40 {
        stage.hold(at(now));
        now += 200;
        stage.settle(seat, ANSWERED, at(now));
        let mut released = stage.run(at(now), at(now));
        seat = released.remove(0).2.unwrap();
    }
    for _ in 0..5 {
        stage.hold(at(now));
    }
    assert_eq!(
        stage.knock(at(now)).refused(),
        Some(Reason::InFlight),
        "six at 200 ms each are 1.2 s"
    );
    stage.settle(seat, ANSWERED, at(now));
}

#[test]
fn only_what_was_not_used_gives_its_token_back() {
    for (outcome, back) in [
        (Outcome::Unused, true),
        (Outcome::Abandoned, false),
        (Outcome::Failed, false),
        (Outcome::TimedOut, false),
        (ANSWERED, false),
    ] {
        let mut stage = Stage::new(Settings {
            max_wait: Duration::ZERO,
            ..settings()
        });
        let seat = stage.enter(at(0));
        stage.settle(seat, outcome, at(0));
        assert_eq!(matches!(stage.knock(at(0)), Seen::In(_)), back, "{outcome:?}");
    }
}

#[test]
fn a_persistent_session_costs_what_it_costs() {
    let cost = Cost {
        clean: 1.0,
        persistent: 4.0,
    };
    let mut stage = Stage::new(Settings {
        burst: 5.0,
        max_wait: Duration::ZERO,
        cost,
        ..settings()
    });
    let persistent = Request {
        persistent: true,
        ..CLEAN
    };
    assert!(matches!(stage.ask(persistent, at(0)), Seen::In(_)));
    assert!(matches!(stage.ask(CLEAN, at(0)), Seen::In(_)));
    assert_eq!(stage.ask(CLEAN, at(0)).refused(), Some(Reason::Rate));
    assert_eq!(stage.ask(persistent, at(399)).refused(), Some(Reason::Rate));
    assert!(matches!(stage.ask(persistent, at(400)), Seen::In(_)));
}

#[test]
fn a_dry_run_refuses_nobody_and_says_whom_it_would() {
    let mut stage = Stage::new(Settings {
        dry_run: true,
        max_held: 4,
        max_in_flight: 7,
        ..settings()
    });
    let mut seats = Vec::new();
    let mut reasons = Vec::new();
    for _ in 0..8 {
        match stage.knock(at(0)) {
            Seen::In(seat) => seats.push(seat),
            Seen::InDespite(seat, reason) => {
                seats.push(seat);
                reasons.push(reason);
            }
            other => panic!("{other:?}"),
        }
    }
    // One from the bucket, four that would be held, three without a place.
    assert_eq!(reasons, [Reason::HoldFull; 3]);
    assert_eq!(stage.controller.snapshot(at(0)).in_flight, 8);
    for seat in seats {
        stage.settle(seat, ANSWERED, at(10));
    }
    assert_eq!(stage.controller.snapshot(at(10)).in_flight, 0);
    assert!(
        matches!(stage.knock(at(500)), Seen::In(_)),
        "the debt of four is paid"
    );
}

#[test]
fn a_dry_run_without_hold_says_rate_and_in_flight() {
    let strict = Settings {
        dry_run: true,
        max_wait: Duration::ZERO,
        max_in_flight: 1,
        ..settings()
    };
    let mut stage = Stage::new(strict);
    assert!(matches!(stage.knock(at(0)), Seen::In(_)));
    assert!(matches!(stage.knock(at(0)), Seen::InDespite(_, Reason::Rate)));
    assert!(matches!(
        stage.knock(at(100)),
        Seen::InDespite(_, Reason::InFlight)
    ));
}

#[test]
fn a_reload_releases_and_refuses_by_the_new_settings() {
    let mut stage = Stage::new(settings());
    let _seat = stage.enter(at(0));
    let numbers = [stage.hold(at(0)).0, stage.hold(at(0)).0];
    stage.reconfigure(
        Settings {
            dry_run: true,
            ..settings()
        },
        at(10),
    );
    assert_eq!(stage.controller.next_release(at(10)), Some(at(10)));
    let released = stage.run(at(10), at(10));
    assert_eq!(released.iter().map(|entry| entry.1).collect::<Vec<_>>(), numbers);

    let mut stage = Stage::new(Settings {
        burst: 5.0,
        cost: Cost {
            clean: 5.0,
            persistent: 5.0,
        },
        ..settings()
    });
    let _seat = stage.enter(at(0));
    let (number, _) = stage.hold(at(0));
    stage.reconfigure(
        Settings {
            burst: 2.0,
            ..settings()
        },
        at(0),
    );
    let released = stage.run(at(0), at(1000));
    assert_eq!(
        (released[0].0, released[0].1),
        (at(200), number),
        "no more than the bucket can hold"
    );
}

/// A step of the property tests.
#[derive(Clone, Debug)]
enum Step {
    Knock {
        persistent: bool,
    },
    Settle {
        which: usize,
        outcome: u8,
    },
    Withdraw {
        which: usize,
    },
    Reconfigure {
        rate: f64,
        max_wait: u64,
        max_in_flight: u32,
    },
}

fn step() -> impl Strategy<Value = (u64, Step)> {
    let action = prop_oneof![
        8 => any::<bool>().prop_map(|persistent| Step::Knock { persistent }),
        5 => (any::<usize>(), 0_u8..5).prop_map(|(which, outcome)| Step::Settle { which, outcome }),
        2 => any::<usize>().prop_map(|which| Step::Withdraw { which }),
        1 => (0.1_f64..100.0, 0_u64..2000, 1_u32..8).prop_map(|(rate, max_wait, max_in_flight)| {
            Step::Reconfigure { rate, max_wait, max_in_flight }
        }),
    ];
    (prop_oneof![Just(0), 0_u64..400], action)
}

fn outcome(number: u8) -> Outcome {
    match number {
        0 => Outcome::Unused,
        1 => Outcome::Abandoned,
        2 => Outcome::Failed,
        3 => Outcome::TimedOut,
        _ => ANSWERED,
    }
}

fn shift(windows: &mut [f64], tokens: f64) {
    for room in windows {
        *room += tokens;
    }
}

proptest! {
    /// Seats and places return to zero, everyone held has exactly one end, the oldest goes first, nobody is
    /// admitted after its deadline, the window is never exceeded, and no window of time is over-issued.
    #[test]
    fn the_books_balance(steps in prop::collection::vec(step(), 1..120)) {
        let mut current = Settings {
            max_in_flight: 4,
            burst: 3.0,
            max_held: 6,
            cost: Cost { clean: 1.0, persistent: 2.5 },
            ..settings()
        };
        let mut stage = Stage::new(current.clone());
        let mut seats: Vec<Seat> = Vec::new();
        let mut held: BTreeMap<u32, (Place, Moment)> = BTreeMap::new();
        let (mut now, mut accrued) = (0_u64, 0.0_f64);
        // What each window of time may still issue, had it begun at that step, before accrual.
        let mut windows: Vec<f64> = Vec::new();
        for (gap, step) in steps {
            let until = now + gap;
            accrued += gap as f64 / 1000.0 * current.rate;
            let mut last = None;
            for (moment, number, seat) in stage.run(at(now), at(until)) {
                let (_, deadline) = held.remove(&number).expect("released twice or never held");
                match seat {
                    Some(seat) => {
                        prop_assert!(moment <= deadline);
                        prop_assert!(last.is_none_or(|last| last < number), "the oldest first");
                        last = Some(number);
                        shift(&mut windows, -seat.inner.cost().as_f64());
                        seats.push(seat);
                    }
                    None => prop_assert!(moment >= deadline),
                }
            }
            now = until;
            windows.push(current.burst - accrued);
            match step {
                Step::Knock { persistent } => match stage.ask(Request { persistent, ..CLEAN }, at(now)) {
                    Seen::In(seat) => {
                        prop_assert!(held.is_empty(), "overtook the held");
                        shift(&mut windows, -seat.inner.cost().as_f64());
                        seats.push(seat);
                    }
                    Seen::Held(number, place) => {
                        held.insert(number, (place, at(now) + current.max_wait));
                    }
                    Seen::Out(Reason::HoldFull) => prop_assert_eq!(held.len(), current.max_held),
                    Seen::Out(Reason::Rate | Reason::InFlight) => {}
                    other => prop_assert!(false, "{other:?}"),
                },
                Step::Settle { which, outcome: number } if !seats.is_empty() => {
                    let seat = seats.swap_remove(which % seats.len());
                    if outcome(number) == Outcome::Unused {
                        shift(&mut windows, seat.inner.cost().as_f64());
                    }
                    stage.settle(seat, outcome(number), at(now));
                }
                Step::Withdraw { which } if !held.is_empty() => {
                    let number = *held.keys().nth(which % held.len()).unwrap();
                    let (place, _) = held.remove(&number).unwrap();
                    stage.controller.withdraw(place, at(now));
                }
                Step::Reconfigure { rate, max_wait, max_in_flight } => {
                    current.rate = rate;
                    current.max_wait = Duration::from_millis(max_wait);
                    current.max_in_flight = max_in_flight;
                    stage.reconfigure(current.clone(), at(now));
                }
                _ => {}
            }
            let snapshot = stage.controller.snapshot(at(now));
            prop_assert_eq!(snapshot.held, held.len());
            prop_assert_eq!(snapshot.in_flight as usize, seats.len());
            // Of 100 a second at most, those who waited count as of up to 5 ms before.
            prop_assert!(windows.iter().all(|room| room + accrued >= -0.51), "over-issued");
        }
        for (_, number, seat) in stage.run(at(now), at(now + 10_000)) {
            prop_assert!(held.remove(&number).is_some());
            seats.extend(seat);
        }
        prop_assert!(held.is_empty(), "forgotten: {held:?}");
        for seat in seats {
            stage.settle(seat, ANSWERED, at(now));
        }
        prop_assert_eq!(stage.controller.snapshot(at(now)).in_flight, 0);
    }

    /// With seats for all, the turn is known exactly: refused at once if and only if it comes too late, and who
    /// is held is admitted.
    #[test]
    fn refused_at_once_exactly_when_the_turn_comes_too_late(
        rate in 0.2_f64..200.0,
        max_wait in 1_u64..3000,
        knocks in prop::collection::vec((prop_oneof![Just(0), 0_u64..300], any::<bool>()), 1..150),
    ) {
        let wait = Duration::from_millis(max_wait);
        let cost = Cost { clean: 1.0, persistent: 2.0 };
        let generous = Settings { rate, burst: 2.0, max_wait: wait, max_held: 1000, cost, ..settings() };
        let mut stage = Stage::new(generous);
        // The same bucket by hand: when it will have been paid for everybody so far, in seconds before full.
        let mut model = Bucket::new(rate, Tokens::new(2.0), Moment::ZERO);
        let mut now = 0;
        for (gap, persistent) in knocks {
            for (_, _, seat) in stage.run(at(now), at(now + gap)) {
                prop_assert!(seat.is_some(), "held in vain");
            }
            now += gap;
            let price = Tokens::new(if persistent { 2.0 } else { 1.0 });
            let in_time = model.available_at(price, Tokens::NONE, at(now)) <= at(now) + wait;
            let seen = stage.ask(Request { persistent, ..CLEAN }, at(now));
            prop_assert_eq!(seen.refused() == Some(Reason::Rate), !in_time, "{:?}", seen);
            if in_time {
                model.owe(price, at(now));
            }
        }
        for (_, _, seat) in stage.run(at(now), at(now + 10_000)) {
            prop_assert!(seat.is_some(), "held in vain");
        }
    }
}
