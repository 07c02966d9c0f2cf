//! A random stream for each device. Two devices that share one wait the same times for ever: a fleet in lockstep in
//! spite of all jitter.

use std::hash::{BuildHasher, Hasher, RandomState};

/// A stream seeded by the operating system: for devices in the field.
///
/// `fastrand`'s own default is seeded by the monotonic clock and the thread: devices that boot together after a power
/// cut would start alike. The standard library's hash keys come from the system's entropy.
pub fn from_entropy() -> fastrand::Rng {
    fastrand::Rng::with_seed(RandomState::new().build_hasher().finish())
}

/// The stream of one device in a test or simulation: the same for the same `seed` and `client_id`, unrelated to that of any other pair.
pub fn from_seed(seed: u64, client_id: &str) -> fastrand::Rng {
    // FNV-1a over the identifier, then two rounds of the SplitMix64 finalizer: neighbouring seeds and identifiers must
    // not give neighbouring states.
    let mut hash = 0xCBF2_9CE4_8422_2325_u64;
    for byte in client_id.bytes() {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3);
    }
    fastrand::Rng::with_seed(mix(mix(seed) ^ hash))
}

fn mix(value: u64) -> u64 {
    let mut mixed = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draws(mut stream: fastrand::Rng, count: usize) -> Vec<f64> {
        (0..count).map(|_| stream.f64()).collect()
    }

    fn correlation(left: &[f64], right: &[f64]) -> f64 {
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
        let (left_mean, right_mean) = (mean(left), mean(right));
        let mut product = 0.0;
        let (mut left_square, mut right_square) = (0.0, 0.0);
        for (a, b) in left.iter().zip(right) {
            product += (a - left_mean) * (b - right_mean);
            left_square += (a - left_mean).powi(2);
            right_square += (b - right_mean).powi(2);
        }
        product / (left_square * right_square).sqrt()
    }

    #[test]
    fn a_seed_and_a_client_name_one_stream() {
        assert_eq!(draws(from_seed(7, "a"), 10), draws(from_seed(7, "a"), 10));
        assert_ne!(draws(from_seed(7, "a"), 10), draws(from_seed(8, "a"), 10));
        assert_ne!(draws(from_seed(7, "a"), 10), draws(from_seed(7, "b"), 10));
    }

    #[test]
    fn streams_from_entropy_differ() {
        assert_ne!(draws(from_entropy(), 4), draws(from_entropy(), 4));
    }

    /// Neighbours in a fleet of 10,000, draw by draw: the n-th delays of all devices against those of the next ones.
    #[test]
    fn streams_of_a_fleet_are_independent() {
        let fleet: Vec<Vec<f64>> = (0..10_000)
            .map(|index| draws(from_seed(42, &format!("device-{index:05}")), 8))
            .collect();
        for draw in 0..8 {
            let column: Vec<f64> = fleet.iter().map(|device| device[draw]).collect();
            let mean = column.iter().sum::<f64>() / column.len() as f64;
            assert!((mean - 0.5).abs() < 0.02, "draw {draw}: mean {mean}");
            for lag in [1, 2, 10, 100] {
                let neighbours = correlation(&column[..column.len() - lag], &column[lag..]);
                assert!(neighbours.abs() < 0.03, "draw {draw}, lag {lag}: {neighbours}");
            }
        }
        // All draws together: 80,000 pairs, of which chance leaves a third of a per cent.
        for lag in [1, 2, 10, 100] {
            let (left, right): (Vec<f64>, Vec<f64>) = fleet
                .iter()
                .zip(&fleet[lag..])
                .flat_map(|(one, other)| one.iter().zip(other))
                .unzip();
            let neighbours = correlation(&left, &right);
            assert!(neighbours.abs() < 0.02, "lag {lag}: {neighbours}");
        }
        let all: Vec<f64> = fleet.concat();
        let lag = correlation(&all[..all.len() - 8], &all[8..]);
        assert!(lag.abs() < 0.02, "{lag}");
        let successive: (Vec<f64>, Vec<f64>) = fleet
            .iter()
            .flat_map(|device| device.windows(2).map(|pair| (pair[0], pair[1])))
            .unzip();
        let within = correlation(&successive.0, &successive.1);
        assert!(within.abs() < 0.02, "{within}");
    }
}
