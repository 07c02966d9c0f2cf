//! In which order the brokers are tried for a client: pure.

/// `upstream.balance`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Balance {
    /// A client returns to the broker that has its session, on every replica and after every restart.
    ClientId,
    /// The broker with the fewest connections of ours first.
    LeastConnections,
    /// Each in turn.
    RoundRobin,
}

/// What is known of the brokers when one is picked.
#[derive(Clone, Copy, Debug)]
pub struct Candidates<'a> {
    /// [`fingerprint`] of the name of each.
    pub names: &'a [u64],
    /// Connections that are open to each.
    pub open: &'a [usize],
    /// How many were picked before: turns the order on.
    pub turn: usize,
}

/// Every candidate once, the one to be tried first at the front. A client without an id has no session to return to, and
/// goes to each in turn.
///
/// By client id it is rendezvous hashing: the highest score of name and id wins, so that without one broker only its own
/// clients move, and when it is back only they return.
pub fn order(balance: Balance, client_id: &str, candidates: Candidates<'_>) -> Vec<usize> {
    let Candidates { names, open, turn } = candidates;
    let mut order: Vec<usize> = (0..names.len()).collect();
    order.rotate_left(turn.checked_rem(names.len()).unwrap_or(0));
    match balance {
        Balance::ClientId if client_id.is_empty() => {}
        Balance::ClientId => {
            let client = fingerprint(client_id);
            let score = |server: usize| names.get(server).map(|name| mixed(client ^ name));
            // Two of one name would tie: then the earlier one, wherever the turn is.
            order.sort_by_key(|server| (std::cmp::Reverse(score(*server)), *server));
        }
        // Stable: among equals it is the turn that decides.
        Balance::LeastConnections => order.sort_by_key(|server| open.get(*server).copied()),
        Balance::RoundRobin => {}
    }
    order
}

/// FNV-1a of 64 bits, mixed. Without a secret, since all replicas must agree: who picks its client id picks its broker,
/// which it could not gain from.
pub fn fingerprint(text: &str) -> u64 {
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    mixed(hash)
}

/// The finalizer of `MurmurHash3`: every bit of the input moves half of the output's.
const fn mixed(mut hash: u64) -> u64 {
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ (hash >> 33)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn names(count: usize) -> Vec<u64> {
        (0..count)
            .map(|number| fingerprint(&format!("10.0.0.{number}:1883")))
            .collect()
    }

    fn by_client(client_id: &str, names: &[u64], turn: usize) -> Vec<usize> {
        let open = vec![0; names.len()];
        let candidates = Candidates {
            names,
            open: &open,
            turn,
        };
        order(Balance::ClientId, client_id, candidates)
    }

    #[test]
    fn each_broker_gets_its_share_of_the_clients() {
        for count in [2, 3, 7] {
            let names = names(count);
            let mut clients = vec![0_usize; count];
            for number in 0..10_000 {
                clients[by_client(&format!("sensor-{number:06}"), &names, 0)[0]] += 1;
            }
            let share = 10_000 / count;
            for found in &clients {
                assert!(found.abs_diff(share) < share / 10, "{clients:?}");
            }
        }
    }

    #[test]
    fn without_one_broker_only_its_clients_move_and_they_spread_over_the_others() {
        let all = names(4);
        let without: Vec<u64> = all[..3].to_vec();
        let mut moved = [0_usize; 3];
        for number in 0..4000 {
            let client = format!("meter-{number}");
            let before = by_client(&client, &all, number);
            let after = by_client(&client, &without, number)[0];
            if before[0] == 3 {
                assert_eq!(after, before[1], "the next of its order");
                moved[after] += 1;
            } else {
                assert_eq!(after, before[0]);
            }
        }
        assert!(moved.iter().all(|count| *count > 200), "{moved:?}");
    }

    #[test]
    fn the_order_does_not_depend_on_the_place_in_the_list() {
        let (one, other) = (fingerprint("a:1883"), fingerprint("b:1883"));
        for number in 0..100 {
            let client = format!("client-{number}");
            let straight = by_client(&client, &[one, other], 0)[0];
            let turned = by_client(&client, &[other, one], 1)[0];
            assert_ne!(straight, turned, "the same broker at another index");
        }
    }

    /// Written down, since another release would move every session: FNV-1a of "a" is known from its authors.
    #[test]
    fn the_hash_is_what_it_always_was() {
        assert_eq!(fingerprint("a"), mixed(0xaf63_dc4c_8601_ec8c));
        assert_eq!(mixed(1), 0xb456_bcfc_34c2_cb2c);
    }

    #[test]
    fn who_has_no_id_goes_to_each_in_turn() {
        let names = names(3);
        let firsts: Vec<usize> = (0..6).map(|turn| by_client("", &names, turn)[0]).collect();
        assert_eq!(firsts, [0, 1, 2, 0, 1, 2]);
    }

    #[test]
    fn the_fewest_connections_come_first_and_equals_in_turn() {
        let names = names(3);
        let by_load = |open: &[usize], turn| {
            order(
                Balance::LeastConnections,
                "client",
                Candidates {
                    names: &names,
                    open,
                    turn,
                },
            )
        };
        assert_eq!(by_load(&[5, 3, 9], 0), [1, 0, 2]);
        assert_eq!(by_load(&[5, 3, 9], 2), [1, 0, 2]);
        assert_eq!(by_load(&[1, 1, 1], 1), [1, 2, 0]);
        assert_eq!(by_load(&[1, 0, 0], 2), [2, 1, 0]);
    }

    proptest! {
        #[test]
        fn everybody_is_in_the_order_once(
            count in 0..9_usize,
            turn: usize,
            client in ".{0,12}",
            open in prop::collection::vec(0..4_usize, 9),
        ) {
            let names = names(count);
            for balance in [Balance::ClientId, Balance::LeastConnections, Balance::RoundRobin] {
                let mut order = order(balance, &client, Candidates { names: &names, open: &open[..count], turn });
                order.sort_unstable();
                prop_assert_eq!(order, (0..count).collect::<Vec<_>>());
            }
        }
    }
}
