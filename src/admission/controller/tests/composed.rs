//! The parts together: who is refused for what, and what is told with it.

use super::*;
use crate::admission::adaptive;
use crate::admission::clients;
use crate::admission::lanes::{Glob, Lane, Members};

/// No hold, room for all.
pub(super) fn roomy() -> Settings {
    Settings {
        rate: 1000.0,
        burst: 1000.0,
        max_wait: Duration::ZERO,
        ..settings()
    }
}

pub(super) fn named(client_id: &str) -> Request<'_> {
    Request { client_id, ..CLEAN }
}

pub(super) fn refusal(stage: &mut Stage, request: Request<'_>, now: Moment) -> Refusal {
    let arrival = stage.classifier.classify(&request);
    match stage.controller.decide(&arrival, |_| 0, now) {
        Verdict::Refuse(refusal) => refusal,
        other => panic!("{other:?}"),
    }
}

pub(super) fn answered(code: u8) -> Outcome {
    Outcome::Answered {
        code,
        latency: Duration::from_millis(5),
    }
}

pub(super) fn admitted(stage: &mut Stage, request: Request<'_>, now: Moment) -> Seat {
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

/// It is the authentication service that is wrong, not the devices.
#[test]
fn an_alarm_says_when_most_of_the_fleet_is_refused() {
    let mut stage = Stage::new(roomy());
    let alarm = |stage: &Stage| stage.controller.snapshot(at(1000)).refuses_most;
    let mut sessions = Vec::new();
    let mut ask = |stage: &mut Stage, number: u32, code| {
        let seat = admitted(stage, named(&format!("device-{number}")), at(1000));
        sessions.extend(stage.controller.settle(seat, answered(code), at(1000)));
    };
    (0..10).for_each(|number| ask(&mut stage, number, 5));
    assert!(!alarm(&stage), "a few, while nobody else is there yet");
    ask(&mut stage, 10, 5);
    assert!(alarm(&stage));
    (100..111).for_each(|number| ask(&mut stage, number, 0));
    assert!(!alarm(&stage), "as many are in");
    ask(&mut stage, 11, 5);
    assert!(alarm(&stage));
    // The service is repaired.
    (0..12).for_each(|number| ask(&mut stage, number, 0));
    assert!(!alarm(&stage));
    for session in sessions {
        stage.controller.ended(session);
    }
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
        let newer = stage.controller.settle(seat, ANSWERED, at(number));
        if let Some(session) = std::mem::replace(&mut sessions, newer.into_iter().collect()).pop() {
            stage.controller.kicked_out(session, at(number));
        }
    }
    assert_eq!(
        refusal(&mut stage, named("twin"), at(5)).reason,
        Reason::ClientRate
    );
    for session in sessions {
        stage.controller.ended(session);
    }
}

/// As Mosquitto does it: the older session is over before the newer one has its answer.
#[test]
fn twins_are_seen_whichever_is_told_first() {
    let mut stage = Stage::new(roomy());
    let mut open: Option<Session> = None;
    for number in 0..5 {
        let seat = admitted(&mut stage, named("twin"), at(number));
        if let Some(session) = open.take() {
            stage.controller.kicked_out(session, at(number));
        }
        open = stage.controller.settle(seat, ANSWERED, at(number));
    }
    assert_eq!(
        refusal(&mut stage, named("twin"), at(5)).reason,
        Reason::ClientRate
    );
    stage.controller.ended(open.unwrap());
    // One that the broker does not accept has none.
    let seat = admitted(&mut stage, named("other"), at(5));
    assert!(stage.controller.settle(seat, answered(5), at(5)).is_none());
    assert_eq!(stage.controller.clients.open(), 0);
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
        label: 0,
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
fn reserves_come_on_top_of_a_rate_that_was_found_up_to_the_highest() {
    let reserved = |reserve| Lane {
        name: "tablets".to_owned(),
        label: 0,
        members: Members::default(),
        reserve,
        priority: 0,
    };
    let rate = |reserve, max_rate| {
        let settings = Settings {
            adaptive: adaptive::Settings {
                enabled: true,
                max_rate,
                ..adaptive::Settings::default()
            },
            lanes: vec![reserved(reserve)],
            ..roomy()
        };
        let mut stage = Stage::new(settings);
        // A broker that is down: the rate falls to its lower limit of 5.
        for number in 0..12 {
            stage.controller.adaptive.failed(at(number));
            for _ in 0..8 {
                stage
                    .controller
                    .adaptive
                    .answered(0, Duration::ZERO, false, at(number));
            }
        }
        let snapshot = stage.controller.snapshot(at(20));
        assert!((snapshot.rate - snapshot.rate_floor).abs() < 1e-9, "{snapshot:?}");
        snapshot.rate
    };
    assert_eq!((rate(50.0, 5000.0) as u32, rate(50.0, 40.0) as u32), (55, 40));
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
