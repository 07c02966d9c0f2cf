//! Who comes on its appointment has its place, and no window of time is over-issued for it.

use super::composed::{admitted, named, refusal};
use super::*;
use crate::admission::lanes::{Glob, Lane, Members};

/// Ten a second, one at a time, nobody waits.
fn narrow() -> Settings {
    Settings {
        max_wait: Duration::ZERO,
        ..settings()
    }
}

/// `first` is in, and `clients` have their slots, 100 ms apart.
fn told(clients: &[&str], settings: Settings) -> Stage {
    let mut stage = Stage::new(settings);
    let seat = admitted(&mut stage, named("first"), at(0));
    stage.settle(seat, ANSWERED, at(0));
    for (number, client) in (1..).zip(clients) {
        let told = refusal(&mut stage, named(client), at(0)).retry_after.unwrap();
        assert_eq!(told, Duration::from_millis(100 * number));
    }
    stage
}

#[test]
fn one_that_is_due_waits_for_the_token_that_others_were_late_for() {
    let mut stage = told(&["a", "b", "c"], narrow());
    // A stranger was there when "a" was not.
    let seat = admitted(&mut stage, named("stranger"), at(100));
    stage.settle(seat, ANSWERED, at(100));
    assert!(matches!(stage.ask(named("a"), at(110)), Seen::Held(..)));
    assert!(
        matches!(stage.ask(named("b"), at(210)), Seen::Held(..)),
        "behind it"
    );
    assert_eq!(
        stage.ask(named("another stranger"), at(210)).refused(),
        Some(Reason::Rate)
    );
    assert_eq!(
        stage.ask(named("c"), at(250)).refused(),
        Some(Reason::Rate),
        "before its time"
    );
    let released = stage.run(at(250), at(1000));
    let moments: Vec<_> = released
        .iter()
        .map(|(moment, _, seat)| (*moment, seat.is_some()))
        .collect();
    // "a" had its turn at 200 ms, and the loop came late.
    assert_eq!(moments, [(at(250), true), (at(350), true)]);
}

#[test]
fn a_place_is_kept_for_two_seconds_and_not_without_a_broker() {
    let clients: Vec<String> = (0..40).map(|number| number.to_string()).collect();
    let clients: Vec<&str> = clients.iter().map(String::as_str).collect();
    let mut stage = told(&clients, narrow());
    // All of them come at once, long after their time: the bucket has one, and gives 20 within two seconds.
    let seen: Vec<Seen> = clients
        .iter()
        .map(|client| stage.ask(named(client), at(10_000)))
        .collect();
    assert!(matches!(seen[0], Seen::In(_)));
    assert!(seen[1..=20].iter().all(|seen| matches!(seen, Seen::Held(..))));
    assert!(seen[21..].iter().all(|seen| seen.refused() == Some(Reason::Rate)));
    // Those are told another time, each its own.
    let again: Vec<_> = clients[21..]
        .iter()
        .map(|client| {
            refusal(&mut stage, named(client), at(10_000))
                .retry_after
                .unwrap()
        })
        .collect();
    assert!(
        again
            .windows(2)
            .all(|pair| pair[1] >= pair[0] + Duration::from_millis(99)),
        "{again:?}"
    );

    for _ in 0..5 {
        stage.controller.report(0, Report::Failed, at(10_000));
    }
    assert_eq!(
        refusal(&mut stage, named("39"), at(10_001)).reason,
        Reason::BreakerOpen
    );
}

#[test]
fn a_place_is_not_kept_where_nobody_knows_when_a_seat_comes() {
    let mut stage = Stage::new(Settings {
        max_in_flight: 1,
        rate: 1000.0,
        burst: 1000.0,
        ..narrow()
    });
    let seat = admitted(&mut stage, named("first"), at(0));
    for moment in [1, 10, 5000] {
        assert_eq!(
            stage.ask(named("second"), at(moment)).refused(),
            Some(Reason::InFlight)
        );
    }
    stage.settle(seat, ANSWERED, at(5000));
    let seat = admitted(&mut stage, named("second"), at(5000));
    stage.settle(seat, ANSWERED, at(5000));
}

#[test]
fn no_place_is_more_than_there_is_room_for() {
    let mut stage = told(
        &["a", "b"],
        Settings {
            max_held: 1,
            ..narrow()
        },
    );
    let seat = admitted(&mut stage, named("stranger"), at(210));
    stage.settle(seat, ANSWERED, at(210));
    assert!(matches!(stage.ask(named("a"), at(220)), Seen::Held(..)));
    assert_eq!(stage.ask(named("b"), at(220)).refused(), Some(Reason::HoldFull));
}

fn lane(name: &str, reserve: f64) -> Lane {
    Lane {
        name: name.into(),
        label: 0,
        members: Members {
            client_id: Some(Glob::new(&format!("{name}-*"))),
            ..Members::default()
        },
        reserve,
        priority: 1,
    }
}

proptest! {
    /// Clients that come early, on time, late and never, with and without a reserve, while the rate changes: no
    /// window of time is given more than its burst and what the rate gave in it, nobody but the due is held where nobody
    /// waits, nobody for longer than its place is kept, and everything comes back.
    #[test]
    fn appointments_never_over_issue(
        waits in any::<bool>(),
        steps in prop::collection::vec((0_u64..400, 0_usize..16, 0_u8..10, 1.0_f64..30.0), 1..200),
    ) {
        let mut current = Settings {
            rate: 8.0,
            burst: 4.0,
            max_in_flight: 6,
            max_wait: if waits { Duration::from_millis(500) } else { Duration::ZERO },
            lanes: vec![lane("tablet", 2.0)],
            cost: Cost { clean: 1.0, persistent: 2.0 },
            ..settings()
        };
        let mut stage = Stage::new(current.clone());
        let names: Vec<String> = (0..16)
            .map(|number| format!("{}-{number}", if number < 4 { "tablet" } else { "device" }))
            .collect();
        let mut seats: Vec<Seat> = Vec::new();
        let mut held: BTreeMap<u32, (Place, u64)> = BTreeMap::new();
        let mut refused = [false; 16];
        let (mut now, mut accrued) = (0_u64, 0.0_f64);
        let mut windows: Vec<f64> = Vec::new();
        for (gap, client, action, rate) in steps {
            let until = now + gap;
            accrued += gap as f64 / 1000.0 * current.rate;
            let mut issued = 0.0;
            for (moment, number, seat) in stage.run(at(now), at(until)) {
                let (_, since) = held.remove(&number).expect("released twice or never held");
                prop_assert!(moment - at(since) <= Duration::from_secs(2), "kept for too long");
                issued += seat.as_ref().map_or(0.0, |seat| seat.inner.cost().as_f64());
                seats.extend(seat);
            }
            now = until;
            // A tablet's reserve may hold two, the shared bucket the rest of the four.
            windows.push(current.burst - accrued + issued);
            match action {
                0 if !seats.is_empty() => {
                    let seat = seats.swap_remove(client % seats.len());
                    stage.settle(seat, ANSWERED, at(now));
                }
                1 if !held.is_empty() => {
                    let number = *held.keys().nth(client % held.len()).unwrap();
                    stage.controller.withdraw(held.remove(&number).unwrap().0, at(now));
                }
                2 => {
                    current.rate = rate.max(3.0);
                    stage.reconfigure(current.clone(), at(now));
                }
                _ => {
                    let request = Request { persistent: client % 3 == 0, ..named(&names[client]) };
                    match stage.ask(request, at(now)) {
                        Seen::In(seat) => {
                            issued += seat.inner.cost().as_f64();
                            seats.push(seat);
                        }
                        Seen::Held(number, place) => {
                            prop_assert!(waits || refused[client], "a stranger was held");
                            held.insert(number, (place, now));
                        }
                        Seen::Out(_) => refused[client] = true,
                        Seen::InDespite(..) => prop_assert!(false, "no dry run"),
                    }
                }
            }
            for room in &mut windows {
                *room -= issued;
            }
            // Of 30 a second at most, those who waited count as of up to 5 ms before.
            prop_assert!(windows.iter().all(|room| room + accrued >= -0.16), "over-issued");
        }
        for (_, number, seat) in stage.run(at(now), at(now + 10_000)) {
            prop_assert!(held.remove(&number).is_some());
            seats.extend(seat);
        }
        prop_assert!(held.is_empty(), "forgotten: {held:?}");
        for seat in seats {
            stage.settle(seat, ANSWERED, at(now));
        }
        let snapshot = stage.controller.snapshot(at(now));
        prop_assert_eq!((snapshot.in_flight, snapshot.held), (0, 0));
    }
}
