//! From a client's own pauses to the policy behind them: a fixed timer, exponential without jitter, or jittered.
//!
//! A pause is what lies between the end of an attempt that failed and the beginning of the next; a period lies between
//! two beginnings. A client that waits after a failure has the one constant, a client on a timer the other, so both are
//! looked at.

use serde::Serialize;

/// Pauses that are kept of a client, the first ones of its storm. Three tell a policy, more make it surer.
pub(super) const KEPT: usize = 6;
/// Fewer tell nothing.
pub(super) const NEEDED: usize = 3;

/// What networks and schedulers add to a pause that is meant to be exact.
const NOISE_SECONDS: f32 = 0.04;
const NOISE_SHARE: f32 = 0.015;
/// Factors that libraries back off by.
const FACTORS: [f32; 5] = [2.0, 1.5, 3.0, 4.0, 1.6];
/// An attempt that does not reach us (no route, refused by a full backlog) leaves a gap of twice or three times the timer.
const MISSED: [f32; 2] = [2.0, 3.0];

/// How a client pauses.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "lowercase", tag = "policy")]
pub enum Policy {
    /// Always as long.
    Fixed {
        /// Seconds.
        pause: f32,
    },
    /// Longer each time by one factor, to the same instant as all its kind.
    Exponential {
        /// The first pause that was seen, in seconds.
        pause: f32,
        /// What each is longer by.
        factor: f32,
    },
    /// Of random length.
    Jittered {
        /// The mean, in seconds.
        pause: f32,
    },
    /// Too few attempts to tell.
    Unknown,
}

/// Tells the policy from the first pauses and periods (as many) in seconds.
pub(super) fn classify(pauses: &[f32], periods: &[f32]) -> Policy {
    if pauses.len() < NEEDED || periods.len() < NEEDED {
        return Policy::Unknown;
    }
    let both = || [pauses, periods].into_iter();
    both()
        .find_map(fixed)
        .or_else(|| both().find_map(exponential))
        .or_else(|| both().find_map(fixed_with_misses))
        .unwrap_or_else(|| Policy::Jittered {
            pause: pauses.iter().sum::<f32>() / pauses.len() as f32,
        })
}

fn noise(pause: f32) -> f32 {
    NOISE_SECONDS + NOISE_SHARE * pause
}

fn is_near(pause: f32, expected: f32) -> bool {
    (pause - expected).abs() <= noise(expected)
}

fn fixed(pauses: &[f32]) -> Option<Policy> {
    let pause = median(pauses);
    // Without any pause everything is near to everything.
    (pause > NOISE_SECONDS && pauses.iter().all(|each| is_near(*each, pause)))
        .then_some(Policy::Fixed { pause })
}

fn exponential(pauses: &[f32]) -> Option<Policy> {
    let first = pauses.first().copied().filter(|first| *first > NOISE_SECONDS)?;
    let grows_by = |factor: f32| {
        let mut at_cap = false;
        let mut steps = 0;
        let fits = pauses.array_windows().all(|[before, after]| {
            if !at_cap && is_near(*after, before * factor) {
                steps += 1;
                return true;
            }
            // The cap cuts one step short, and from there on nothing grows.
            let is_last_step = !at_cap && *after > *before && *after < before * factor;
            let ok = is_near(*after, *before) || (is_last_step && steps >= 2);
            at_cap = true;
            ok
        });
        fits && steps >= 2
    };
    let factor = FACTORS.into_iter().find(|factor| grows_by(*factor))?;
    Some(Policy::Exponential { pause: first, factor })
}

/// With four pauses and more: half of them are the timer's, the others a small multiple.
fn fixed_with_misses(pauses: &[f32]) -> Option<Policy> {
    if pauses.len() <= NEEDED {
        return None;
    }
    let least = pauses.iter().copied().fold(f32::INFINITY, f32::min);
    if least <= 4.0 * NOISE_SECONDS {
        return None;
    }
    let once = pauses.iter().filter(|pause| is_near(**pause, least)).count();
    let fits = pauses
        .iter()
        .all(|pause| is_near(*pause, least) || MISSED.iter().any(|times| is_near(*pause, least * times)));
    (fits && 2 * once >= pauses.len()).then_some(Policy::Fixed { pause: least })
}

fn median(values: &[f32]) -> f32 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f32::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or_default()
}

/// How much the moments (in seconds) stand together within a period: the length of their mean as points of a circle.
/// 1: all in one instant; 0: evenly spread. About one over the root of their number comes by chance.
pub(super) fn concentration(moments: impl Iterator<Item = f64>, period: f64) -> f64 {
    let (mut x, mut y, mut count) = (0.0, 0.0, 0_u64);
    for moment in moments {
        let (sine, cosine) = (moment / period * std::f64::consts::TAU).sin_cos();
        x += cosine;
        y += sine;
        count += 1;
    }
    if count == 0 || period <= 0.0 {
        return 0.0;
    }
    f64::hypot(x, y) / count as f64
}

#[cfg(test)]
mod tests {
    use fastrand::Rng;

    use super::*;

    fn word(policy: Policy) -> &'static str {
        match policy {
            Policy::Fixed { .. } => "fixed",
            Policy::Exponential { .. } => "exponential",
            Policy::Jittered { .. } => "jittered",
            Policy::Unknown => "unknown",
        }
    }

    #[test]
    fn policies_are_told_by_their_pauses() {
        for (pauses, expected) in [
            (vec![5.0, 5.03, 4.99], "fixed"),
            (vec![60.0, 60.5, 59.8, 60.1], "fixed"),
            (vec![1.0, 2.01, 4.0], "exponential"),
            (vec![1.0, 1.5, 2.25, 3.38], "exponential"),
            (vec![1.0, 2.0, 4.0, 5.0, 5.0, 5.0], "exponential"),
            (vec![1.0, 2.0, 4.0, 4.0], "exponential"),
            (vec![5.0, 10.0, 5.0, 5.0], "fixed"),
            (vec![5.0, 15.1, 5.0, 5.0, 10.0], "fixed"),
            (vec![4.2, 1.7, 0.4], "jittered"),
            (vec![4.5, 5.5, 5.0], "jittered"),
            (vec![0.0, 0.01, 0.0], "jittered"),
            (vec![8.0, 4.0, 2.0], "jittered"),
            (vec![5.0, 5.0], "unknown"),
        ] {
            assert_eq!(word(classify(&pauses, &pauses)), expected, "{pauses:?}");
        }
        // On a timer that does not care for answers, which come sooner or later.
        let found = classify(&[4.9, 2.0, 4.0], &[5.0, 5.0, 5.0]);
        assert_eq!(found, Policy::Fixed { pause: 5.0 });
        assert_eq!(
            classify(&[1.0, 2.0, 4.0], &[1.2, 2.9, 4.1]),
            Policy::Exponential {
                pause: 1.0,
                factor: 2.0
            }
        );
    }

    /// Three pauses each, with up to 30 ms of network on each, and any base.
    #[test]
    fn three_pauses_tell_nineteen_of_twenty() {
        let mut random = Rng::with_seed(7);
        for base in [0.5_f32, 1.0, 2.0, 5.0, 10.0] {
            let mut right = |expected: &str, next: &dyn Fn(&mut Rng, i32) -> f32| {
                let count = 4000;
                let found = (0..count).filter(|_| {
                    let pauses: Vec<f32> = (0..3)
                        .map(|step| next(&mut random, step) + random.f32() * 0.03)
                        .collect();
                    word(classify(&pauses, &pauses)) == expected
                });
                let share = found.count() as f32 / count as f32;
                assert!(share >= 0.95, "{expected}, base {base} s: {share}");
            };
            right("fixed", &|_, _| base);
            right("exponential", &|_, step| base * 2_f32.powi(step));
            right("jittered", &|random, step| random.f32() * base * 2_f32.powi(step));
            right("jittered", &|random, _| random.f32() * 2.0 * base);
        }
    }

    #[test]
    fn concentration_is_one_in_lockstep_and_nothing_when_spread() {
        let together = (0..100).map(|lap| f64::from(lap) * 5.0 + 0.01 * f64::from(lap % 3));
        assert!(concentration(together, 5.0) > 0.99);
        let spread = (0..100).map(|part| f64::from(part) * 0.05);
        assert!(concentration(spread, 5.0) < 0.01);
        assert!(concentration(std::iter::empty(), 5.0) < f64::EPSILON);
        assert!(concentration([1.0].into_iter(), 0.0) < f64::EPSILON);
    }
}
