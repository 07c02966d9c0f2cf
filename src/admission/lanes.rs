//! Which lane a CONNECT is in: first match on globs and networks.

use std::net::IpAddr;

use ipnet::IpNet;

use super::Request;

/// `[[admission.lanes]]`: a class of clients.
#[derive(Clone, Debug, PartialEq)]
pub struct Lane {
    /// Metric label and audit word.
    pub name: String,
    /// Number that telemetry knows it by. A reload may change its place in the list; this stays.
    pub label: usize,
    /// Who is in it: all that are given must match.
    pub members: Members,
    /// Tokens a second that only this lane may use, 0 or more; the reserves together stay below the rate.
    pub reserve: f64,
    /// Among held CONNECTs the higher goes first.
    pub priority: i32,
}

/// Who is in a lane: everything that is given must match, and what is given matches no CONNECT that lacks it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Members {
    /// Client identifier.
    pub client_id: Option<Glob>,
    /// User name.
    pub username: Option<Glob>,
    /// Common name of the client's certificate.
    pub common_name: Option<Glob>,
    /// Server name (SNI), in lower case: DNS names have no case.
    pub server_name: Option<Glob>,
    /// Networks of the client's address; empty: any address.
    pub source: Vec<IpNet>,
}

impl Members {
    /// Whether `request` is one of them.
    pub fn include(&self, request: &Request<'_>) -> bool {
        let server_name = || request.server_name.map(str::to_ascii_lowercase);
        let matches = |glob: &Option<Glob>, text: Option<&str>| {
            glob.as_ref()
                .is_none_or(|glob| text.is_some_and(|text| glob.matches(text)))
        };
        matches(&self.client_id, Some(request.client_id))
            && matches(&self.username, request.username)
            && matches(&self.common_name, request.common_name)
            && (self.server_name.is_none() || matches(&self.server_name, server_name().as_deref()))
            && (self.source.is_empty() || request.source.is_some_and(|source| self.covers(source)))
    }

    fn covers(&self, source: IpAddr) -> bool {
        // A dual-stack socket shows 10.1.2.3 as ::ffff:10.1.2.3.
        let source = source.to_canonical();
        self.source.iter().any(|network| network.contains(&source))
    }
}

/// The index of the lane of `request` in `lanes`; their number for the lane "default".
pub fn classify(lanes: &[Lane], request: &Request<'_>) -> usize {
    lanes
        .iter()
        .position(|lane| lane.members.include(request))
        .unwrap_or(lanes.len())
}

/// A pattern: `*` stands for any run of characters, `?` for one character, everything else for itself.
///
/// A match takes at most the length of the text times the longest piece between two `*`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Glob {
    /// What stands between the `*`.
    pieces: Vec<Vec<char>>,
}

impl Glob {
    /// Every text is a pattern.
    pub fn new(pattern: &str) -> Self {
        Self {
            pieces: pattern.split('*').map(|piece| piece.chars().collect()).collect(),
        }
    }

    /// Whether all of `text` matches.
    pub fn matches(&self, text: &str) -> bool {
        let Some((first, rest)) = self.pieces.split_first() else {
            return false;
        };
        let Some(after) = strip_front(text, first) else {
            return false;
        };
        let Some((last, middle)) = rest.split_last() else {
            return after.is_empty();
        };
        let mut remaining = after;
        for piece in middle {
            let Some(after) = skip_to_end_of(remaining, piece) else {
                return false;
            };
            remaining = after;
        }
        ends_with(remaining, last)
    }
}

fn strip_front<'t>(text: &'t str, piece: &[char]) -> Option<&'t str> {
    let mut characters = text.chars();
    for expected in piece {
        let found = characters.next()?;
        if *expected != '?' && *expected != found {
            return None;
        }
    }
    Some(characters.as_str())
}

/// The leftmost place is the best: what follows has the most room.
fn skip_to_end_of<'t>(text: &'t str, piece: &[char]) -> Option<&'t str> {
    let mut from = text;
    loop {
        if let Some(after) = strip_front(from, piece) {
            return Some(after);
        }
        let mut characters = from.chars();
        characters.next()?;
        from = characters.as_str();
    }
}

fn ends_with(text: &str, piece: &[char]) -> bool {
    let mut characters = text.chars();
    piece.iter().rev().all(|expected| {
        characters
            .next_back()
            .is_some_and(|found| *expected == '?' || *expected == found)
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn globs_match_as_documented() {
        for (pattern, text, expected) in [
            ("tablet-*", "tablet-", true),
            ("tablet-*", "tablet-17", true),
            ("tablet-*", "Tablet-17", false),
            ("tablet-*", "my-tablet-17", false),
            ("*-tablet", "my-tablet", true),
            ("*", "", true),
            ("", "", true),
            ("", "a", false),
            ("a*a", "a", false),
            ("a*a", "aa", true),
            ("*ab*ab*", "abab", true),
            ("*ab*ab*", "abxa", false),
            ("*ab*ab", "abxab", true),
            ("?", "ü", true),
            ("?", "", false),
            ("a?c*", "abcdef", true),
            ("a?c", "ac", false),
            ("**", "anything", true),
            ("[a-z]", "b", false),
            ("[a-z]", "[a-z]", true),
            ("*x?", "xxyz", false),
            ("*x?", "yyxz", true),
        ] {
            assert_eq!(Glob::new(pattern).matches(text), expected, "{pattern} on {text}");
        }
    }

    #[test]
    fn a_hostile_text_takes_no_time_to_speak_of() {
        let text = "a".repeat(65_535);
        assert!(!Glob::new("*aaaaaaaaab*aaaaaaaaab*aaaaaaaaab*").matches(&text));
        assert!(!Glob::new("*a*a*a*a*a*a*a*a*a*a*a*b").matches(&text));
    }

    fn lane(members: Members) -> Lane {
        Lane {
            name: "lane".into(),
            label: 0,
            members,
            reserve: 0.0,
            priority: 0,
        }
    }

    fn glob(pattern: &str) -> Glob {
        Glob::new(pattern)
    }

    #[test]
    fn the_first_lane_of_which_all_matches_is_taken() {
        let lanes = [
            lane(Members {
                client_id: Some(glob("tablet-*")),
                source: vec!["10.1.0.0/16".parse().unwrap()],
                ..Members::default()
            }),
            lane(Members {
                username: Some(glob("ops")),
                ..Members::default()
            }),
            lane(Members {
                common_name: Some(glob("*.gateway")),
                server_name: Some(glob("mqtt.example")),
                ..Members::default()
            }),
            lane(Members {
                source: vec!["2001:db8::/32".parse().unwrap()],
                ..Members::default()
            }),
        ];
        let nobody = Request {
            client_id: "tablet-1",
            ..Request::default()
        };
        let source = |address: &str| Some(address.parse().unwrap());
        for (request, expected) in [
            (
                Request {
                    source: source("10.1.2.3"),
                    username: Some("ops"),
                    ..nobody
                },
                0,
            ),
            (
                Request {
                    source: source("::ffff:10.1.2.3"),
                    ..nobody
                },
                0,
            ),
            (
                Request {
                    source: source("10.2.0.1"),
                    username: Some("ops"),
                    ..nobody
                },
                1,
            ),
            (
                Request {
                    username: Some(""),
                    ..nobody
                },
                4,
            ),
            (
                Request {
                    common_name: Some("a.gateway"),
                    server_name: Some("MQTT.example"),
                    ..nobody
                },
                2,
            ),
            (
                Request {
                    common_name: Some("a.gateway"),
                    ..nobody
                },
                4,
            ),
            (
                Request {
                    source: source("2001:db8:1::5"),
                    ..nobody
                },
                3,
            ),
            (nobody, 4),
        ] {
            assert_eq!(classify(&lanes, &request), expected, "{request:?}");
        }
        assert_eq!(classify(&[], &nobody), 0);
        assert_eq!(
            classify(&[lane(Members::default())], &nobody),
            0,
            "no condition: everybody"
        );
    }

    /// The definition, word for word.
    fn slow(pattern: &[char], text: &[char]) -> bool {
        match (pattern.split_first(), text.split_first()) {
            (None, _) => text.is_empty(),
            (Some(('*', rest)), None) => slow(rest, text),
            (Some(('*', rest)), Some((_, tail))) => slow(rest, text) || slow(pattern, tail),
            (Some(_), None) => false,
            (Some((expected, rest)), Some((found, tail))) => {
                (*expected == '?' || expected == found) && slow(rest, tail)
            }
        }
    }

    proptest! {
        #[test]
        fn matches_by_the_definition(pattern in "[ab?*]{0,8}", text in "[ab]{0,10}") {
            let characters = |text: &str| text.chars().collect::<Vec<_>>();
            prop_assert_eq!(
                Glob::new(&pattern).matches(&text),
                slow(&characters(&pattern), &characters(&text))
            );
        }
    }
}
