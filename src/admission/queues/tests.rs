use proptest::prelude::*;

use super::*;
use crate::admission::lanes::{Lane, Members};

const SECOND: u64 = 1_000_000_000;

fn at(milliseconds: u64) -> Moment {
    Moment::from_nanos(milliseconds * 1_000_000)
}

fn one() -> Tokens {
    Tokens::new(1.0)
}

fn lane(name: &str, reserve: f64, priority: i32) -> Lane {
    Lane {
        name: name.into(),
        label: 0,
        members: Members::default(),
        reserve,
        priority,
    }
}

/// Lane 0: tablets with a reserve; lane 1: gateways, neither reserve nor priority; lane 2: "default".
fn settings() -> Settings {
    Settings {
        rate: 10.0,
        burst: 6.0,
        max_in_flight: 1000,
        max_held: 10,
        lanes: vec![lane("tablets", 4.0, 5), lane("gateways", 0.0, 0)],
        ..Settings::default()
    }
}

const TABLETS: usize = 0;
const GATEWAYS: usize = 1;
const DEFAULT: usize = 2;

fn supply(settings: &Settings) -> Supply {
    Supply {
        rate: settings.rate,
        burst: settings.burst,
        max_in_flight: settings.max_in_flight,
        share: 1.0,
    }
}

fn queues(settings: &Settings) -> Queues<u32> {
    Queues::new(settings, supply(settings), Moment::ZERO)
}

fn admit(queues: &mut Queues<u32>, lane: usize, now: Moment) -> Option<Seat> {
    queues.admit(lane, one(), Kept::NOTHING, now)
}

fn admitted(queues: &mut Queues<u32>, lane: usize, now: Moment) -> usize {
    std::iter::from_fn(|| admit(queues, lane, now)).take(1000).count()
}

fn hold(queues: &mut Queues<u32>, lane: usize, number: u32) -> Place {
    queues
        .push(lane, one(), Moment::NEVER, Moment::ZERO, |_| number)
        .unwrap()
}

fn ready(queues: &mut Queues<u32>, now: Moment) -> Vec<u32> {
    std::iter::from_fn(|| queues.pop_ready(now))
        .map(|(waiter, _)| waiter)
        .collect()
}

#[test]
fn a_reserve_is_only_for_its_lane_and_unused_it_is_gone() {
    let mut queues = queues(&settings());
    // Of the burst of 6 four are the reserve's.
    assert_eq!(admitted(&mut queues, DEFAULT, at(0)), 2);
    assert_eq!(admitted(&mut queues, TABLETS, at(0)), 4);
    // For ten seconds only "default" comes: 6 a second and nothing of what the tablets leave.
    let total: usize = (1..=1000)
        .map(|step| admitted(&mut queues, DEFAULT, at(step * 10)))
        .sum();
    assert_eq!(total, 60);
    assert_eq!(admitted(&mut queues, TABLETS, at(10_000)), 4);
}

#[test]
fn above_its_reserve_a_lane_competes_for_the_rest() {
    let mut queues = queues(&settings());
    assert_eq!(admitted(&mut queues, TABLETS, at(0)), 6);
    assert_eq!(admitted(&mut queues, DEFAULT, at(0)), 0);
    assert_eq!(admitted(&mut queues, DEFAULT, at(200)), 1);
}

#[test]
fn a_reserve_has_a_burst_of_at_least_one_and_of_the_largest_cost() {
    let slow = Settings {
        lanes: vec![lane("slow", 0.1, 0)],
        ..settings()
    };
    let mut slow_queues = queues(&slow);
    assert_eq!(admitted(&mut slow_queues, 1, at(0)), 5);
    assert_eq!(admitted(&mut slow_queues, 0, at(0)), 1);
    assert_eq!(admitted(&mut slow_queues, 0, at(9)), 0);
    let cost = crate::admission::Cost {
        clean: 1.0,
        persistent: 3.0,
    };
    let dear = Settings { cost, ..slow };
    assert!(
        queues(&dear)
            .admit(0, Tokens::new(3.0), Kept::NOTHING, at(0))
            .is_some()
    );
}

#[test]
fn higher_priority_first_within_it_the_oldest() {
    let mut queues = queues(&settings());
    assert_eq!(admitted(&mut queues, TABLETS, at(0)), 6);
    for (number, lane) in (0..).zip([DEFAULT, GATEWAYS, DEFAULT, TABLETS, GATEWAYS, TABLETS]) {
        hold(&mut queues, lane, number);
    }
    // Six shared and four reserved tokens a second.
    assert_eq!(
        ready(&mut queues, at(334)),
        [3, 5, 0],
        "one of the tablets' own, two shared"
    );
    assert_eq!(ready(&mut queues, at(668)), [1, 2]);
    assert_eq!(ready(&mut queues, at(1002)), [4]);
}

#[test]
fn a_reserve_serves_its_lane_while_a_higher_priority_waits_for_the_rest() {
    let both = Settings {
        lanes: vec![lane("reserved", 4.0, 0), lane("urgent", 0.0, 9)],
        ..settings()
    };
    let mut queues = queues(&both);
    assert_eq!(admitted(&mut queues, 1, at(0)), 2);
    hold(&mut queues, 1, 1);
    assert_eq!(admitted(&mut queues, 0, at(0)), 4, "its own tokens");
    hold(&mut queues, 0, 2);
    assert_eq!(queues.next_ready(at(0)), Moment::from_nanos(SECOND / 6 + 1));
    assert_eq!(ready(&mut queues, at(167)), [1]);
    assert!(ready(&mut queues, at(249)).is_empty());
    assert_eq!(queues.next_ready(at(249)), at(250));
    assert_eq!(ready(&mut queues, at(250)), [2]);
}

#[test]
fn a_large_cost_is_not_starved_by_small_ones() {
    let cost = crate::admission::Cost {
        clean: 1.0,
        persistent: 5.0,
    };
    let mut queues = queues(&Settings {
        lanes: vec![lane("other", 0.0, 0)],
        cost,
        ..settings()
    });
    assert_eq!(admitted(&mut queues, 1, at(0)), 6);
    queues
        .push(1, Tokens::new(5.0), Moment::NEVER, Moment::ZERO, |_| 1)
        .unwrap();
    hold(&mut queues, 0, 2);
    assert!(ready(&mut queues, at(400)).is_empty(), "four tokens are claimed");
    assert_eq!(admitted(&mut queues, 0, at(400)), 0);
    assert_eq!(ready(&mut queues, at(600)), [1, 2]);
}

#[test]
fn a_lane_with_a_reserve_has_its_share_of_seats_and_places() {
    let few = Settings {
        burst: 100.0,
        max_in_flight: 10,
        ..settings()
    };
    let mut few_queues = queues(&few);
    assert_eq!(admitted(&mut few_queues, DEFAULT, at(0)), 6);
    assert_eq!(admitted(&mut few_queues, TABLETS, at(0)), 4);
    let mut few_queues = queues(&few);
    assert_eq!(
        admitted(&mut few_queues, TABLETS, at(0)),
        10,
        "above its share it competes"
    );
    assert_eq!(admitted(&mut few_queues, DEFAULT, at(0)), 0);

    let mut places = queues(&few);
    let held = |queues: &mut Queues<u32>, lane| {
        (0..100)
            .take_while(|number| {
                queues.has_place(lane) && queues.push(lane, one(), at(1), at(0), |_| *number).is_some()
            })
            .count()
    };
    assert_eq!(held(&mut places, DEFAULT), 6);
    assert_eq!(held(&mut places, TABLETS), 4);

    // One seat for each side even where there is only one.
    let mut one_seat = queues(&Settings {
        max_in_flight: 1,
        max_held: 1,
        ..few
    });
    assert_eq!(admitted(&mut one_seat, DEFAULT, at(0)), 1);
    assert_eq!(admitted(&mut one_seat, TABLETS, at(0)), 1);
    assert!(one_seat.has_place(TABLETS));
}

#[test]
fn when_the_rate_falls_below_the_reserves_everybody_keeps_something() {
    let settings = settings();
    let mut queues = queues(&settings);
    assert_eq!(admitted(&mut queues, TABLETS, at(0)), 6);
    queues.set_supply(
        Supply {
            rate: 2.0,
            ..supply(&settings)
        },
        at(0),
    );
    // 1.8 a second for the tablets, 0.2 for the rest.
    let count = |queues: &mut Queues<u32>, lane| -> usize {
        (0..=1000).map(|step| admitted(queues, lane, at(step * 10))).sum()
    };
    assert_eq!(count(&mut queues, DEFAULT), 2);
    let mut queues = self::queues(&settings);
    assert_eq!(admitted(&mut queues, TABLETS, at(0)), 6);
    queues.set_supply(
        Supply {
            rate: 2.0,
            ..supply(&settings)
        },
        at(0),
    );
    assert_eq!(count(&mut queues, TABLETS), 20);
}

#[test]
fn a_reload_keeps_queues_seats_and_tokens() {
    let settings = settings();
    let mut queues = queues(&settings);
    let seats: Vec<Seat> = std::iter::from_fn(|| admit(&mut queues, TABLETS, at(0))).collect();
    let gateway = hold(&mut queues, GATEWAYS, 1);
    let tablet = hold(&mut queues, TABLETS, 2);
    hold(&mut queues, DEFAULT, 3);
    // The tablets are gone, the gateways have moved and got a reserve.
    let changed = Settings {
        lanes: vec![lane("new", 1.0, 1), lane("gateways", 3.0, 2)],
        ..settings.clone()
    };
    queues.reconfigure(&changed, supply(&changed), at(0));
    assert_eq!((queues.held(), queues.in_flight()), (3, 6));
    assert!(
        queues.tokens(at(0)) < 0.001,
        "no fresh burst: {}",
        queues.tokens(at(0))
    );
    assert_eq!(queues.remove(tablet), Some(2));
    assert_eq!(queues.remove(gateway), Some(1));
    assert_eq!(queues.remove(gateway), None);
    for seat in seats {
        queues.leave(seat, true, at(0));
    }
    assert_eq!((queues.held(), queues.in_flight(), queues.lanes.len()), (1, 0, 3));
    assert_eq!(ready(&mut queues, at(1000)), [3]);
    assert_eq!(
        admitted(&mut queues, 99, at(2000)),
        2,
        "a lane that is not there is the default"
    );
}

#[test]
fn a_refund_goes_back_to_where_it_came_from() {
    let mut queues = queues(&settings());
    let reserved = admit(&mut queues, TABLETS, at(0)).unwrap();
    assert_eq!(admitted(&mut queues, TABLETS, at(0)), 5);
    queues.leave(reserved, false, at(0));
    assert_eq!(admitted(&mut queues, DEFAULT, at(0)), 0);
    assert_eq!(admitted(&mut queues, TABLETS, at(0)), 1);
}

proptest! {
    /// Over any sequence of arrivals, ends and changes of the rate: no window is over-issued, the seats are never
    /// more than allowed, and who comes to a lane whose reserve is there gets in.
    #[test]
    fn reserves_are_kept_and_nothing_is_over_issued(
        steps in prop::collection::vec((0_u64..400, 0_usize..3, 0_u8..8, 1.0_f64..30.0), 1..150),
    ) {
        let lanes = vec![lane("a", 2.0, 0), lane("b", 3.0, 1)];
        let settings = Settings { lanes, max_in_flight: 8, ..settings() };
        let mut queues = queues(&settings);
        let mut supply = supply(&settings);
        let mut seats: Vec<(usize, Seat)> = Vec::new();
        let mut waiting = [0_usize; 3];
        let (mut now, mut accrued) = (0, 0.0);
        let mut windows: Vec<f64> = Vec::new();
        for (number, (gap, lane, action, rate)) in (0_u32..).zip(steps) {
            now += gap;
            accrued += gap as f64 / 1000.0 * supply.rate;
            // The reserves' bursts of 2 and 3 and one shared token always fit into the burst of 6.
            windows.push(6.0 - accrued);
            let mut issued = 0.0;
            match action {
                0 if !seats.is_empty() => {
                    let (_, seat) = seats.swap_remove(number as usize % seats.len());
                    queues.leave(seat, true, at(now));
                }
                1 => {
                    supply.rate = rate;
                    queues.set_supply(supply, at(now));
                }
                2 => {
                    hold(&mut queues, lane, lane as u32);
                    waiting[lane] += 1;
                }
                3 | 4 => {
                    while let Some((lane, seat)) = queues.pop_ready(at(now)) {
                        waiting[lane as usize] -= 1;
                        issued += 1.0;
                        seats.push((lane as usize, seat));
                    }
                    prop_assert!(queues.next_ready(at(now)) > at(now));
                }
                _ => {
                    let reserve = queues.lanes[lane].reserve.as_ref();
                    let there = reserve.is_some_and(|reserve| reserve.tokens(at(now)) >= 1.0);
                    let own_seat = queues.lanes[lane].has_own_seat();
                    let seat = admit(&mut queues, lane, at(now));
                    if there && own_seat && waiting[lane] == 0 {
                        prop_assert!(seat.is_some(), "reserve and share were free");
                    }
                    issued += f64::from(u8::from(seat.is_some()));
                    seats.extend(seat.map(|seat| (lane, seat)));
                }
            }
            for room in &mut windows {
                *room -= issued;
            }
            // Of 30 a second at most, those who waited count as of up to 5 ms before.
            prop_assert!(windows.iter().all(|room| room + accrued >= -0.16), "over-issued");
            prop_assert!(queues.in_flight() <= 8);
            prop_assert_eq!(queues.in_flight() as usize, seats.len());
            prop_assert_eq!(queues.held(), waiting.iter().sum::<usize>());
        }
    }

    /// With seats for all, whoever is told a turn has it by then at the latest, as long as nobody of higher priority
    /// comes later.
    #[test]
    fn a_turn_is_kept(
        reserves in prop::collection::vec((0.0_f64..3.0, 0_i32..3), 0..4),
        knocks in prop::collection::vec((0_u64..300, 0_usize..5, any::<bool>()), 1..80),
    ) {
        let lanes = reserves.iter().enumerate().map(|(number, (reserve, priority))| {
            let reserve = if *reserve < 1.0 { 0.0 } else { *reserve };
            lane(&number.to_string(), reserve, *priority)
        });
        let cost = crate::admission::Cost { clean: 1.0, persistent: 2.0 };
        let settings = Settings { burst: 4.0, lanes: lanes.collect(), cost, ..settings() };
        let mut queues = queues(&settings);
        let mut turns: Vec<Moment> = Vec::new();
        let mut lowest = Vec::new();
        let mut now = 0;
        for (gap, lane, dear) in knocks {
            let until = at(now + gap);
            let mut moment = at(now);
            loop {
                while let Some((waiter, _)) = queues.pop_ready(moment) {
                    if lowest[waiter as usize] {
                        prop_assert!(moment <= turns[waiter as usize] + std::time::Duration::from_nanos(80));
                    }
                }
                moment = queues.next_ready(moment);
                if moment > until {
                    break;
                }
            }
            now += gap;
            let lane = lane.min(settings.lanes.len());
            let cost = Tokens::new(if dear { 2.0 } else { 1.0 });
            // A later one of higher priority takes the turn of those below: they are not judged any more.
            let priority = queues.lanes[lane].priority;
            for queue in queues.lanes.iter().filter(|queue| queue.priority < priority) {
                for number in queue.hold.iter() {
                    lowest[number as usize] = false;
                }
            }
            let turn = queues.turn(lane, cost, Kept::NOTHING, at(now));
            prop_assert_eq!(turn.seat, Some(at(now)));
            if let Some(_seat) = queues.admit(lane, cost, Kept::NOTHING, at(now)) {
                continue;
            }
            queues.push(lane, cost, Moment::NEVER, Moment::ZERO, |_| turns.len() as u32).unwrap();
            turns.push(turn.tokens);
            lowest.push(true);
        }
    }
}
