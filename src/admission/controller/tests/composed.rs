//! The parts together: who is refused for what, and what is told with it.

use super::*;
use crate::admission::adaptive;
use crate::admission::clients;
use crate::admission::lanes::{Glob, Lane, Members};

/// No hold, room for all.
fn roomy() -> Settings {
    Settings {
        rate: 1000.0,
        burst: 1000.0,
        max_wait: Duration::ZERO,
        ..settings()
    }
}

fn named(client_id: &str) -> Request<'_> {
    Request { client_id, ..CLEAN }
}

fn refusal(stage: &mut Stage, request: Request<'_>, now: Moment) -> Refusal {
    let arrival = stage.classifier.classify(&request);
    match stage.controller.decide(&arrival, |_| 0, now) {
        Verdict::Refuse(refusal) => refusal,
        other => panic!("{other:?}"),
    }
}

fn answered(code: u8) -> Outcome {
    Outcome::Answered {
        code,
        latency: Duration::from_millis(5),
    }
}

fn admitted(stage: &mut Stage, request: Request<'_>, now: Moment) -> Seat {
    match stage.ask(request, now) {
        Seen::In(seat) => seat,
        other => panic!("{other:?}"),
    }
}

#[test]
fn bad_credentials_are_answered_with_the_brokers_own_code() {
    let mut stage = Stage::new(roomy());
    let wrong = Request {
        username: Some("user"),
        password: Some(b"wrong"),
        ..named("device")
    };
    for _ in 0..3 {
        let seat = admitted(&mut stage, wrong, at(0));
        stage.settle(seat, answered(0x86), at(0));
    }
    let tokens = stage.controller.snapshot(at(0)).tokens;
    let told = refusal(&mut stage, wrong, at(1));
    assert_eq!(
        (told.reason, told.code, told.retry_after),
        (Reason::BadCredentials, Some(0x86), None)
    );
    assert!(
        stage.controller.snapshot(at(0)).tokens >= tokens,
        "from memory: no token"
    );
    let corrected = Request {
        password: Some(b"right"),
        ..wrong
    };
    let seat = admitted(&mut stage, corrected, at(1));
    stage.settle(seat, ANSWERED, at(1));
    assert_eq!(
        refusal(&mut stage, wrong, at(2)).reason,
        Reason::BadCredentials,
        "the wrong one is still wrong"
    );
    let seat = admitted(&mut stage, wrong, at(5000));
    stage.settle(seat, ANSWERED, at(5000));
    let seat = admitted(&mut stage, wrong, at(5000));
    stage.settle(seat, ANSWERED, at(5000));
}

#[test]
fn the_second_dial_gets_the_verdict_of_the_first() {
    let mut stage = Stage::new(Settings {
        rate: 10.0,
        burst: 1.0,
        ..roomy()
    });
    let seat = admitted(&mut stage, named("other"), at(0));
    stage.settle(seat, ANSWERED, at(0));
    let first = refusal(&mut stage, named("device"), at(90));
    // The token would be there for the second dial.
    let second = Request {
        version: Version::V3_1,
        ..named("device")
    };
    assert_eq!(refusal(&mut stage, second, at(110)), first);
    let seat = admitted(
        &mut stage,
        Request {
            version: Version::V3_1,
            ..named("speaks 3.1")
        },
        at(110),
    );
    stage.settle(seat, ANSWERED, at(110));
    let seat = admitted(&mut stage, second, at(1200));
    stage.settle(seat, ANSWERED, at(1200));
}

#[test]
fn a_client_that_comes_too_often_is_told_when_to_come() {
    let per_client = clients::Settings {
        rate: 0.5,
        burst: 1.0,
    };
    let mut stage = Stage::new(Settings {
        per_client,
        ..roomy()
    });
    let seat = admitted(&mut stage, named("hot"), at(0));
    stage.settle(seat, ANSWERED, at(0));
    let told = refusal(&mut stage, named("hot"), at(500));
    assert_eq!(
        (told.reason, told.retry_after),
        (Reason::ClientRate, Some(Duration::from_millis(1500)))
    );
    for _ in 0..3 {
        let seat = admitted(&mut stage, named(""), at(500));
        stage.settle(seat, ANSWERED, at(500));
    }
}

#[test]
fn twins_are_slowed_down_by_their_sessions() {
    let mut stage = Stage::new(roomy());
    let mut sessions = Vec::new();
    for number in 0..5 {
        let seat = admitted(&mut stage, named("twin"), at(number));
        sessions.extend(stage.controller.settle(seat, ANSWERED, at(number)));
    }
    assert_eq!(
        refusal(&mut stage, named("twin"), at(5)).reason,
        Reason::ClientRate
    );
    for session in sessions {
        stage.controller.ended(session);
    }
}

#[test]
fn a_refusal_for_want_of_room_is_an_appointment_that_is_kept() {
    let mut stage = Stage::new(Settings {
        rate: 10.0,
        burst: 1.0,
        ..roomy()
    });
    let seat = admitted(&mut stage, named("first"), at(0));
    stage.settle(seat, ANSWERED, at(0));
    let after = |stage: &mut Stage, client_id, now| {
        refusal(stage, named(client_id), at(now))
            .retry_after
            .unwrap()
            .as_millis()
    };
    assert_eq!(after(&mut stage, "a", 0), 100);
    assert_eq!(after(&mut stage, "b", 0), 200);
    assert_eq!(after(&mut stage, "c", 20), 280);
    assert_eq!(
        after(&mut stage, "b", 50),
        150,
        "asking again does not push it back"
    );
    for (client_id, now) in [("a", 100), ("b", 200), ("c", 300)] {
        let seat = admitted(&mut stage, named(client_id), at(now));
        stage.settle(seat, ANSWERED, at(now));
    }
    assert_eq!(stage.controller.snapshot(at(300)).appointments, 0);
}

fn fail(stage: &mut Stage, times: u32, now: Moment) {
    for number in 0..times {
        let name = format!("failing {number}");
        let seat = admitted(stage, named(&name), now);
        assert!(stage.controller.may_dial(0, now));
        stage.controller.report(0, Report::Failed, now);
        stage.settle(seat, Outcome::Failed, now);
    }
}

#[test]
fn an_open_breaker_refuses_for_what_is_left_of_it() {
    let mut stage = Stage::new(roomy());
    fail(&mut stage, 5, at(0));
    let told = refusal(&mut stage, named("a"), at(500));
    assert_eq!(
        (told.reason, told.retry_after),
        (Reason::BreakerOpen, Some(Duration::from_millis(1500)))
    );
    assert!(!stage.controller.may_dial(0, at(500)));
    assert!(!stage.controller.snapshot(at(500)).usable);
    // One probe, and nobody beside it.
    let probe = admitted(&mut stage, named("probe"), at(2000));
    assert_eq!(
        refusal(&mut stage, named("b"), at(2000)).reason,
        Reason::BreakerOpen
    );
    assert!(stage.controller.may_dial(0, at(2000)));
    assert_eq!(stage.controller.breaker(0, at(2000)), State::HalfOpen);
    stage.controller.report(0, Report::Answered, at(2010));
    stage.settle(probe, ANSWERED, at(2010));
    assert_eq!(stage.controller.breaker(0, at(2010)), State::Closed);
    // No crowd behind it: a tenth of the burst, then a tenth of the rate and rising.
    let names: Vec<String> = (0..3000).map(|number| number.to_string()).collect();
    let mut names = names.iter();
    let mut burst = |stage: &mut Stage, now| {
        let mut seats = Vec::new();
        while let Seen::In(seat) = stage.ask(named(names.next().unwrap()), at(now)) {
            seats.push(seat);
        }
        let count = seats.len();
        for seat in seats {
            stage.settle(seat, ANSWERED, at(now));
        }
        count
    };
    assert!((80..=100).contains(&burst(&mut stage, 2010)));
    assert!((9..=12).contains(&burst(&mut stage, 2110)));
    // From a tenth to 0.55 within five seconds: 1,615, of which a quarter of the burst is kept for the refused.
    let more: usize = (1..=490).map(|step| burst(&mut stage, 2110 + step * 10)).sum();
    assert!((1450..=1620).contains(&more), "{more}");
    assert!((stage.controller.snapshot(at(12_010)).rate - 1000.0).abs() < 1e-6);
}

#[test]
fn while_no_broker_is_usable_the_patient_are_held() {
    let mut stage = Stage::new(Settings {
        max_wait: Duration::from_secs(4),
        ..roomy()
    });
    fail(&mut stage, 5, at(0));
    let arrival = stage.classifier.classify(&named("first"));
    let Verdict::Hold { .. } = stage.controller.decide(&arrival, |_| 1, at(100)) else {
        panic!("not held")
    };
    let arrival = stage.classifier.classify(&named("second"));
    let Verdict::Hold { .. } = stage.controller.decide(&arrival, |_| 2, at(100)) else {
        panic!("not held")
    };
    let mut released = stage.run(at(100), at(2900));
    assert_eq!(released.len(), 1, "one probe: {released:?}");
    assert_eq!((released[0].0, released[0].1), (at(2000), 1));
    let seat = released.remove(0).2.unwrap();
    assert!(stage.controller.may_dial(0, at(2000)));
    stage.controller.report(0, Report::Answered, at(2900));
    stage.settle(seat, ANSWERED, at(2900));
    let released = stage.run(at(2900), at(3000));
    assert_eq!((released[0].0, released[0].1), (at(2900), 2));
    // A probe that fails shuts it for longer than anybody waits: the next is refused at once.
    let mut stage = Stage::new(Settings {
        max_wait: Duration::from_millis(1500),
        ..roomy()
    });
    fail(&mut stage, 5, at(0));
    assert_eq!(
        refusal(&mut stage, named("first"), at(400)).reason,
        Reason::BreakerOpen
    );
    assert!(matches!(stage.ask(named("second"), at(500)), Seen::Held(..)));
}

#[test]
fn the_second_knock_of_one_whose_broker_failed_keeps_its_deadline() {
    let mut stage = Stage::new(Settings {
        max_wait: Duration::from_secs(4),
        ..roomy()
    });
    fail(&mut stage, 5, at(2500));
    let arrival = stage.classifier.classify(&named("device"));
    let again = Arrival {
        since: Some(at(0)),
        ..arrival
    };
    assert!(
        matches!(
            stage.controller.decide(&again, |_| 1, at(2500)),
            Verdict::Refuse(_)
        ),
        "4.5 s is too late"
    );
    let again = Arrival {
        since: Some(at(1000)),
        ..arrival
    };
    assert!(matches!(
        stage.controller.decide(&again, |_| 1, at(2500)),
        Verdict::Hold { .. }
    ));
    let released = stage.run(at(2500), at(4500));
    assert_eq!((released[0].0, released[0].1), (at(4500), 1));
}

#[test]
fn an_abandoned_probe_lets_the_next_one_go() {
    let mut stage = Stage::new(roomy());
    fail(&mut stage, 5, at(0));
    let probe = admitted(&mut stage, named("probe"), at(2000));
    stage.settle(probe, Outcome::Unused, at(2001));
    let probe = admitted(&mut stage, named("probe"), at(2001));
    assert!(stage.controller.may_dial(0, at(2001)));
    stage.controller.report(0, Report::Abandoned, at(2100));
    stage.settle(probe, Outcome::Abandoned, at(2100));
    let probe = admitted(&mut stage, named("probe"), at(2100));
    assert!(stage.controller.may_dial(0, at(2100)));
    stage.settle(probe, Outcome::Abandoned, at(2200));
}

#[test]
fn a_dry_run_objects_to_everything_and_refuses_nothing() {
    let per_client = clients::Settings {
        rate: 0.001,
        burst: 1.0,
    };
    let mut stage = Stage::new(Settings {
        dry_run: true,
        per_client,
        ..roomy()
    });
    let seat = admitted(&mut stage, named("hot"), at(0));
    stage.settle(seat, answered(5), at(0));
    for _ in 0..2 {
        let Seen::InDespite(seat, Reason::ClientRate) = stage.ask(named("hot"), at(0)) else {
            panic!("admitted")
        };
        stage.settle(seat, answered(5), at(0));
    }
    let Seen::InDespite(seat, Reason::BadCredentials) = stage.ask(named("hot"), at(0)) else {
        panic!("admitted")
    };
    stage.settle(seat, Outcome::Failed, at(0));
    for _ in 0..5 {
        stage.controller.report(0, Report::Failed, at(0));
    }
    let Seen::InDespite(seat, Reason::BreakerOpen) = stage.ask(named("cold"), at(0)) else {
        panic!("admitted")
    };
    stage.settle(seat, ANSWERED, at(0));
    assert_eq!(stage.controller.snapshot(at(0)).in_flight, 0);
}

#[test]
fn a_lane_above_its_reserve_is_refused_as_lane() {
    let members = Members {
        client_id: Some(Glob::new("tablet-*")),
        ..Members::default()
    };
    let tablets = Lane {
        name: "tablets".into(),
        members,
        reserve: 2.0,
        priority: 1,
    };
    let mut stage = Stage::new(Settings {
        rate: 10.0,
        burst: 4.0,
        lanes: vec![tablets],
        ..roomy()
    });
    let mut seats = Vec::new();
    while let Seen::In(seat) = stage.ask(named("sensor"), at(0)) {
        seats.push(seat);
    }
    assert_eq!(seats.len(), 2);
    assert_eq!(refusal(&mut stage, named("sensor"), at(0)).reason, Reason::Rate);
    for number in 0..2 {
        seats.push(admitted(&mut stage, named(&format!("tablet-{number}")), at(0)));
    }
    assert_eq!(refusal(&mut stage, named("tablet-9"), at(0)).reason, Reason::Lane);
    for seat in seats {
        stage.settle(seat, ANSWERED, at(1));
    }
}

#[test]
fn the_adaptive_rate_and_window_reach_the_queues() {
    let adaptive = adaptive::Settings {
        enabled: true,
        ..adaptive::Settings::default()
    };
    let mut stage = Stage::new(Settings {
        adaptive,
        max_in_flight: 50,
        ..roomy()
    });
    let snapshot = stage.controller.snapshot(at(0));
    assert_eq!((snapshot.window, snapshot.rate as u32), (1, 1000));
    let seat = admitted(&mut stage, named("a"), at(0));
    assert_eq!(refusal(&mut stage, named("b"), at(0)).reason, Reason::InFlight);
    stage.settle(seat, Outcome::TimedOut, at(1000));
    assert_eq!(stage.controller.snapshot(at(1000)).rate as u32, 500);
    // A fixed rate again.
    stage.reconfigure(
        Settings {
            max_in_flight: 50,
            ..roomy()
        },
        at(1000),
    );
    let snapshot = stage.controller.snapshot(at(1000));
    assert_eq!((snapshot.window, snapshot.rate as u32), (50, 1000));
}
