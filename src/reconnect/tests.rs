//! The parts together, in virtual time: a host with many clients, and an outage.

use std::collections::BTreeSet;
use std::time::Duration;

use super::*;
use crate::moment::Moment;

const SECOND: Duration = Duration::from_secs(1);
const CLIENTS: usize = 200;
const TIMER: Duration = Duration::from_secs(5);
const SPACING: Duration = Duration::from_millis(250);
const OUTAGE: Duration = Duration::from_mins(9);
/// Long enough for every client to be back: 200 at four a second, and a cap.
const WATCHED: Duration = Duration::from_mins(20);

/// Clients of one host lose their broker at 0 and find it again after the outage. The answer is the moments of the
/// CONNECTs that left the host: those that found nobody, and those that were answered.
fn host(policy: Policy, limit: Option<&ProcessLimit>) -> (Vec<Moment>, usize) {
    let schedule = Schedule::new(policy, TIMER, 2.0, Duration::from_mins(5)).unwrap();
    let schedule = if policy == Policy::Fixed {
        Schedule::new(policy, TIMER, 1.0, TIMER).unwrap()
    } else {
        schedule
    };
    let mut silent = |_: &Record<'_>| {};
    let mut due = BTreeSet::new();
    let mut clients: Vec<Reconnect> = (0..CLIENTS)
        .map(|index| {
            let client_id = format!("client-{index}");
            let random = from_seed(9, &client_id);
            Reconnect::new(client_id, false, Settings::persistent(schedule), random)
        })
        .collect();
    for (index, client) in clients.iter_mut().enumerate() {
        // They had been connected for an hour.
        client.connected(Moment::ZERO, &mut silent);
        let lost = Moment::ZERO + Duration::from_hours(1);
        let Next::Wait(wait) = client.lost(Cause::Transport, lost, &mut silent) else {
            panic!("gave up")
        };
        due.insert((wait.until, index, false));
    }
    let origin = Moment::ZERO + Duration::from_hours(1);
    let (mut connects, mut back) = (Vec::new(), 0);
    while let Some((now, index, has_turn)) = due.pop_first() {
        if now.since(origin) > WATCHED {
            break;
        }
        let client = &mut clients[index];
        if !has_turn && let Some(limit) = limit {
            let turn = limit.reserve(now);
            if !turn.is_zero() {
                client.rate_limited(turn, now, &mut silent);
                due.insert((now + turn, index, true));
                continue;
            }
        }
        connects.push(now);
        if now.since(origin) >= OUTAGE {
            client.connected(now, &mut silent);
            back += 1;
            continue;
        }
        let Next::Wait(wait) = client.failed(Cause::Timeout, None, now, &mut silent) else {
            panic!("gave up")
        };
        due.insert((wait.until, index, false));
    }
    (connects, back)
}

/// Most CONNECTs within any window of this length.
fn peak(connects: &[Moment], window: Duration) -> usize {
    let mut most = 0;
    let mut first = 0;
    for (last, moment) in connects.iter().enumerate() {
        while moment.since(connects[first]) >= window {
            first += 1;
        }
        most = most.max(last + 1 - first);
    }
    most
}

#[test]
fn a_host_with_a_limit_stays_within_its_budget_through_an_outage() {
    let budget_a_second = 4;
    for policy in [Policy::Fixed, Policy::FullJitter, Policy::Decorrelated] {
        let limit = ProcessLimit::new(Rate::spaced(SPACING));
        let (connects, back) = host(policy, Some(&limit));
        assert_eq!(back, CLIENTS, "{policy}");
        assert!(
            peak(&connects, SECOND) <= budget_a_second,
            "{policy}: {}",
            peak(&connects, SECOND)
        );
        assert_eq!(peak(&connects, SPACING), 1, "{policy}");
    }
}

#[test]
fn fixed_timers_without_a_limit_exceed_it_by_two_orders() {
    let (connects, back) = host(Policy::Fixed, None);
    assert_eq!(back, CLIENTS);
    assert_eq!(peak(&connects, SPACING), CLIENTS);
    let (spread, back) = host(Policy::FullJitter, None);
    assert_eq!(back, CLIENTS);
    assert!(peak(&spread, SECOND) < CLIENTS / 2, "{}", peak(&spread, SECOND));
}
