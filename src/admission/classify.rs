//! CONNECT → what the controller decides by: its lane, its cost and whose it is. Done outside of the door's lock.

use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;

use super::bucket::Tokens;
use super::lanes::{self, Lane};
use super::memory::Key;
use super::sources::Source;
use super::suspects::Suspect;
use super::{Request, Settings};
use crate::moment::Moment;
use crate::mqtt::Version;

/// What the controller decides by. Small, and free of the CONNECT's bytes, names and secrets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Index into [`Settings::lanes`]; their number for the lane "default".
    pub lane: usize,
    /// [`Lane::label`] of it; `None` for the lane "default".
    pub label: Option<usize>,
    /// Tokens that it takes.
    pub cost: Tokens,
    /// Version of the CONNECT.
    pub version: Version,
    /// Whose it is; `None` where the broker is to choose a client id.
    pub client: Option<Key>,
    /// Client id, user name, password and certificate together; `None` where bad ones are not remembered.
    pub credentials: Option<Key>,
    /// When it came, where it knocks for a second time (its broker failed before anything was answered): its wait
    /// counts from there. `None`: now.
    pub since: Option<Moment>,
}

/// Turns a [`Request`] into an [`Arrival`]. Immutable; a reload makes a new one with the same secret keys.
#[derive(Clone, Debug)]
pub struct Classifier {
    lanes: Vec<Lane>,
    clean: Tokens,
    persistent: Tokens,
    remembers_credentials: bool,
    /// `SipHash` with a random key of this process: nobody outside can aim at a collision, and what is kept of a
    /// password can't be tried out without the key.
    keys: RandomState,
}

impl Classifier {
    /// For these settings, with keys of its own.
    pub fn new(settings: &Settings) -> Self {
        Self::with_keys(settings, RandomState::new())
    }

    /// For other settings, with the same keys: what is remembered by them stays known.
    #[must_use]
    pub fn renewed(&self, settings: &Settings) -> Self {
        Self::with_keys(settings, self.keys.clone())
    }

    fn with_keys(settings: &Settings, keys: RandomState) -> Self {
        Self {
            lanes: settings.lanes.clone(),
            clean: Tokens::new(settings.cost.clean),
            persistent: Tokens::new(settings.cost.persistent),
            remembers_credentials: settings.bad_credentials.after > 0,
            keys,
        }
    }

    /// What `request` is.
    pub fn classify(&self, request: &Request<'_>) -> Arrival {
        let Request {
            client_id,
            username,
            password,
            common_name,
            ..
        } = *request;
        let client = (!client_id.is_empty()).then(|| Key(self.keys.hash_one(client_id)));
        // The codes of 5.0 are others: what the broker said to one must not be told to the other.
        let is_v5 = request.version == Version::V5;
        let credentials = || {
            Key(self
                .keys
                .hash_one((client_id, username, password, common_name, is_v5)))
        };
        let lane = lanes::classify(&self.lanes, request);
        Arrival {
            lane,
            label: self.lanes.get(lane).map(|lane| lane.label),
            cost: if request.persistent {
                self.persistent
            } else {
                self.clean
            },
            version: request.version,
            client,
            credentials: self.remembers_credentials.then(credentials),
            since: None,
        }
    }

    /// Who it is before a broker that broke off: the `client` of its arrival, and its address.
    pub fn suspect(&self, client: Option<Key>, source: IpAddr) -> Suspect {
        let source = Key(self.keys.hash_one(Source::from(source)));
        Suspect {
            client: client.unwrap_or(source),
            source,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_of_the_credentials_counts() {
        let classifier = Classifier::new(&Settings::default());
        let whole = Request {
            client_id: "device",
            username: Some("user"),
            password: Some(b"secret"),
            common_name: Some("name"),
            ..Request::default()
        };
        let arrival = classifier.classify(&whole);
        assert_eq!(arrival.credentials, classifier.classify(&whole).credentials);
        for other in [
            Request {
                client_id: "device2",
                ..whole
            },
            Request {
                version: Version::V5,
                ..whole
            },
            Request {
                username: Some("user2"),
                ..whole
            },
            Request {
                username: None,
                ..whole
            },
            Request {
                password: Some(b"secre"),
                ..whole
            },
            Request {
                password: None,
                ..whole
            },
            Request {
                common_name: Some("other"),
                ..whole
            },
            Request {
                username: Some("users"),
                password: Some(b"ecret"),
                ..whole
            },
        ] {
            let other_arrival = classifier.classify(&other);
            assert_ne!(other_arrival.credentials, arrival.credentials, "{other:?}");
            assert_eq!(
                other_arrival.client == arrival.client,
                other.client_id == whole.client_id
            );
        }
        assert_ne!(
            Classifier::new(&Settings::default()).classify(&whole).client,
            arrival.client,
            "a secret key"
        );
        assert_eq!(
            classifier.renewed(&Settings::default()).classify(&whole).client,
            arrival.client
        );
    }

    #[test]
    fn nothing_is_remembered_by_an_empty_client_id_or_where_it_is_off() {
        let mut settings = Settings::default();
        settings.bad_credentials.after = 0;
        let arrival = Classifier::new(&settings).classify(&Request::default());
        assert_eq!((arrival.client, arrival.credentials), (None, None));
    }

    #[test]
    fn a_customer_is_one_source_and_without_a_client_id_one_client() {
        let classifier = Classifier::new(&Settings::default());
        let suspect = |client, address: &str| classifier.suspect(client, address.parse().unwrap());
        let one = suspect(Some(Key(1)), "2001:db8:0:1::1");
        assert_eq!(one, suspect(Some(Key(1)), "2001:db8:0:1:ffff::2"));
        assert_ne!(one.source, suspect(Some(Key(1)), "2001:db8:0:2::1").source);
        assert_eq!(suspect(None, "::ffff:192.0.2.1"), suspect(None, "192.0.2.1"));
        assert_ne!(
            suspect(None, "192.0.2.1").client,
            suspect(None, "192.0.2.2").client
        );
    }

    #[test]
    fn nothing_secret_is_shown() {
        let request = Request {
            username: Some("user"),
            password: Some(b"secret"),
            ..Request::default()
        };
        let arrival = Classifier::new(&Settings::default()).classify(&request);
        for shown in [format!("{request:?}"), format!("{arrival:?}")] {
            assert!(
                !shown.contains("user") && !shown.contains("secret") && !shown.contains("115, 101"),
                "{shown}"
            );
        }
    }
}
