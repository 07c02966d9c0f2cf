//! What becomes of the clients while a broker is broken, and after it.

use super::composed::{admitted, named, refusal, roomy};
use super::*;

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
    assert_eq!(stage.controller.snapshot(at(500)).cause, RateCause::NoBroker);
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
    assert_eq!(stage.controller.snapshot(at(2110)).cause, RateCause::SlowStart);
    // From a tenth to 0.55 within five seconds: 1,615, of which an eighth of the burst is kept for the refused.
    let more: usize = (1..=490).map(|step| burst(&mut stage, 2110 + step * 10)).sum();
    assert!((1450..=1620).contains(&more), "{more}");
    assert!((stage.controller.snapshot(at(12_010)).rate - 1000.0).abs() < 1e-6);
    assert_eq!(stage.controller.snapshot(at(12_010)).cause, RateCause::Fixed);
}

#[test]
fn behind_a_window_full_of_the_mute_one_who_heeds_comes_seldom() {
    let mut stage = Stage::new(Settings {
        max_in_flight: 1,
        ..roomy()
    });
    let _mute = admitted(&mut stage, named("mute"), at(0));
    let (mut now, mut visits) = (at(300), 0);
    while now < at(10_000) {
        let told = refusal(&mut stage, named("heeds"), now);
        assert_eq!(told.reason, Reason::InFlight);
        now = now + told.retry_after.unwrap();
        visits += 1;
    }
    assert!(visits <= 6, "{visits}");
}

#[test]
fn who_keeps_its_appointment_is_not_charged_by_the_limit_of_its_own() {
    let mut stage = Stage::new(Settings {
        rate: 0.5,
        burst: 1.0,
        per_client: crate::admission::clients::Settings {
            rate: 0.05,
            burst: 1.0,
        },
        ..roomy()
    });
    let other = admitted(&mut stage, named("other"), at(0));
    stage.settle(other, ANSWERED, at(0));
    let told = refusal(&mut stage, named("device"), at(1)).retry_after.unwrap();
    assert_eq!(
        refusal(&mut stage, named("device"), at(500)).reason,
        Reason::ClientRate
    );
    let device = admitted(&mut stage, named("device"), at(1) + told);
    stage.settle(device, ANSWERED, at(1) + told);
    assert_eq!(
        refusal(&mut stage, named("device"), at(1) + told).reason,
        Reason::ClientRate
    );
}

/// Nobody knocks while the rate rises, and the burst is there afterwards all the same.
#[test]
fn the_burst_comes_back_while_nobody_comes() {
    for idle in [false, true] {
        let mut stage = Stage::new(roomy());
        fail(&mut stage, 5, at(0));
        let probe = admitted(&mut stage, named("probe"), at(2000));
        assert!(stage.controller.may_dial(0, at(2000)));
        stage.controller.report(0, Report::Answered, at(2010));
        stage.settle(probe, ANSWERED, at(2010));
        let burst = stage.controller.settings().burst;
        if idle {
            assert!(stage.run(at(2010), at(14_000)).is_empty());
        } else {
            for step in 0..1199 {
                let now = at(2010 + step * 10);
                let seat = admitted(&mut stage, named(&format!("{step}")), now);
                stage.settle(seat, ANSWERED, now);
            }
            stage.run(at(14_000), at(15_000));
        }
        let tokens = stage.controller.snapshot(at(15_000)).tokens;
        assert!((tokens - burst).abs() < 1.0, "{idle} {tokens}");
        assert_eq!(stage.controller.next_release(at(15_000)), None, "it sleeps again");
        let in_at_once = (0..5000)
            .take_while(|number| matches!(stage.ask(named(&format!("z{number}")), at(15_000)), Seen::In(_)))
            .count();
        assert!(in_at_once as f64 >= burst - 1.0, "{idle} {in_at_once}");
    }
}

#[test]
fn where_the_followed_rate_ends_is_told() {
    for (min_rate, max_rate, cause) in [
        (1000.0, 5000.0, RateCause::Floor),
        (5.0, 1000.0, RateCause::Ceiling),
        (5.0, 5000.0, RateCause::Found),
    ] {
        let mut settings = roomy();
        settings.rate = 1000.0;
        settings.adaptive.enabled = true;
        settings.adaptive.min_rate = min_rate;
        settings.adaptive.max_rate = max_rate;
        let snapshot = Stage::new(settings).controller.snapshot(at(0));
        assert_eq!((snapshot.cause, snapshot.rate_floor), (cause, min_rate));
    }
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
