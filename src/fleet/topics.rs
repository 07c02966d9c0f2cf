//! Who is connected to the simulated broker and who subscribed to what.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use mqttbytes::QoS;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::packet::Message;

/// Messages that wait for one slow subscriber; what comes on top is dropped and counted. A few seconds of any trial.
pub(super) const MAX_OUTGOING: usize = 1000;

/// Filters that one client may have, so that a publish costs a bounded search.
const MAX_FILTERS: usize = 100;

/// One connection of the broker's, never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Connection(pub(super) u64);

/// Locked for a moment at a time, never across an await.
#[derive(Debug, Default)]
pub(super) struct Topics(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    clients: HashMap<String, (Connection, CancellationToken)>,
    subscribers: HashMap<Connection, Subscriber>,
}

#[derive(Debug)]
struct Subscriber {
    filters: Vec<(String, QoS)>,
    outgoing: mpsc::Sender<Message>,
}

impl Topics {
    /// Takes a client in; a connection of the same client identifier is ended through its token.
    pub(super) fn enter(&self, client_id: &str, connection: Connection) -> CancellationToken {
        let token = CancellationToken::new();
        let before = self
            .lock()
            .clients
            .insert(client_id.to_owned(), (connection, token.clone()));
        if let Some((_, older)) = before {
            older.cancel();
        }
        token
    }

    /// Forgets a connection; the client stays when it is connected anew.
    pub(super) fn leave(&self, client_id: &str, connection: Connection) {
        let mut inner = self.lock();
        inner.subscribers.remove(&connection);
        if inner
            .clients
            .get(client_id)
            .is_some_and(|(current, _)| *current == connection)
        {
            inner.clients.remove(client_id);
        }
    }

    /// Clients connected now.
    pub(super) fn connected(&self) -> usize {
        self.lock().clients.len()
    }

    /// Adds or replaces a filter; the answer is the QoS granted, or `None`: not a filter, or one too many.
    pub(super) fn subscribe(
        &self,
        connection: Connection,
        filter: &str,
        qos: QoS,
        outgoing: &mpsc::Sender<Message>,
    ) -> Option<QoS> {
        if !mqttbytes::valid_filter(filter) || filter.starts_with("$share/") {
            return None;
        }
        let granted = qos.min_of(QoS::AtLeastOnce);
        let mut inner = self.lock();
        let subscriber = inner.subscribers.entry(connection).or_insert_with(|| Subscriber {
            filters: Vec::new(),
            outgoing: outgoing.clone(),
        });
        subscriber.filters.retain(|(present, _)| present != filter);
        if subscriber.filters.len() >= MAX_FILTERS {
            return None;
        }
        subscriber.filters.push((filter.to_owned(), granted));
        Some(granted)
    }

    /// Whether the filter was there.
    pub(super) fn unsubscribe(&self, connection: Connection, filter: &str) -> bool {
        let mut inner = self.lock();
        let Some(subscriber) = inner.subscribers.get_mut(&connection) else {
            return false;
        };
        let before = subscriber.filters.len();
        subscriber.filters.retain(|(present, _)| present != filter);
        subscriber.filters.len() < before
    }

    /// Hands a message to every subscriber once, at the highest QoS of its matching filters; the answer is how many of
    /// them had no room.
    pub(super) fn publish(&self, message: &Message) -> u64 {
        let mut dropped = 0;
        for subscriber in self.lock().subscribers.values() {
            let matching = subscriber
                .filters
                .iter()
                .filter(|(filter, _)| matches(&message.topic, filter));
            let Some(granted) = matching.map(|(_, qos)| *qos).reduce(QosOrder::max_of) else {
                continue;
            };
            let copy = Message {
                qos: message.qos.min_of(granted),
                ..message.clone()
            };
            dropped += u64::from(subscriber.outgoing.try_send(copy).is_err());
        }
        dropped
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// `QoS` of `mqttbytes` has a partial order only.
trait QosOrder {
    fn min_of(self, other: Self) -> Self;
    fn max_of(self, other: Self) -> Self;
}

impl QosOrder for QoS {
    fn min_of(self, other: Self) -> Self {
        if self < other { self } else { other }
    }

    fn max_of(self, other: Self) -> Self {
        if self > other { self } else { other }
    }
}

/// MQTT 5.0 section 4.7. (That of `mqttbytes` panics where a topic begins with a character of several bytes.)
fn matches(topic: &str, filter: &str) -> bool {
    if topic.starts_with('$') && filter.starts_with(['+', '#']) {
        return false;
    }
    let mut levels = topic.split('/');
    for wanted in filter.split('/') {
        match (wanted, levels.next()) {
            ("#", _) => return true,
            ("+", Some(_)) => {}
            (wanted, Some(level)) if wanted == level => {}
            _ => return false,
        }
    }
    levels.next().is_none()
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    #[test]
    fn filters_match_as_the_specification_says() {
        let cases = [
            ("a/b/c", "a/b/c", true),
            ("a/b/c", "a/+/c", true),
            ("a/b/c", "#", true),
            ("a", "a/#", true),
            ("a/b", "a/#", true),
            ("ab", "a/#", false),
            ("a/b/c", "a/+", false),
            ("a", "a/+", false),
            ("a/", "a/+", true),
            ("/a", "+/+", true),
            ("$SYS/x", "#", false),
            ("$SYS/x", "+/x", false),
            ("$SYS/x", "$SYS/#", true),
            ("über/x", "über/+", true),
            ("über/x", "u/+", false),
        ];
        for (topic, filter, expected) in cases {
            assert_eq!(matches(topic, filter), expected, "{topic} {filter}");
        }
    }

    #[test]
    fn overlapping_filters_deliver_once_at_the_highest_qos() {
        let topics = Topics::default();
        let (outgoing, mut received) = mpsc::channel(4);
        topics.subscribe(Connection(1), "a/#", QoS::AtMostOnce, &outgoing);
        topics.subscribe(Connection(1), "a/b", QoS::ExactlyOnce, &outgoing);
        let message = Message {
            topic: "a/b".into(),
            payload: Bytes::new(),
            qos: QoS::AtLeastOnce,
        };
        assert_eq!(topics.publish(&message), 0);
        assert_eq!(received.try_recv().unwrap().qos, QoS::AtLeastOnce);
        assert!(received.try_recv().is_err());
    }

    #[test]
    fn a_client_that_comes_again_ends_its_older_connection_only() {
        let topics = Topics::default();
        let older = topics.enter("device", Connection(1));
        let newer = topics.enter("device", Connection(2));
        assert!(older.is_cancelled());
        topics.leave("device", Connection(1));
        assert_eq!(topics.connected(), 1);
        assert!(!newer.is_cancelled());
        topics.leave("device", Connection(2));
        assert_eq!(topics.connected(), 0);
    }

    #[test]
    fn a_full_subscriber_loses_messages_and_nobody_else_does() {
        let topics = Topics::default();
        let (slow, _kept) = mpsc::channel(1);
        let (fast, mut received) = mpsc::channel(8);
        topics.subscribe(Connection(1), "a", QoS::AtMostOnce, &slow);
        topics.subscribe(Connection(2), "a", QoS::AtMostOnce, &fast);
        let message = Message {
            topic: "a".into(),
            payload: Bytes::new(),
            qos: QoS::AtMostOnce,
        };
        assert_eq!([topics.publish(&message), topics.publish(&message)], [0, 1]);
        assert!(received.try_recv().is_ok() && received.try_recv().is_ok());
    }
}
