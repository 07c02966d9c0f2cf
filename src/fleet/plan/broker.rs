//! The broker behind its authentication service: servers that work side by side on one queue, each login for the same
//! time. None of them notices that somebody has left the queue, as none does: an abandoned login costs what any costs.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

use super::presence::Ticket;
use super::scenario;
use crate::moment::Moment;

/// The queue and who is being served.
#[derive(Debug)]
pub(super) struct Broker {
    servers: usize,
    service: Duration,
    longest: usize,
    queue: VecDeque<Ticket>,
    /// Number of the login among all, so that those which end together end in their order.
    serving: BinaryHeap<Reverse<(Moment, u64, Ticket)>>,
    begun: u64,
    /// Nobody is listening before.
    down_until: Moment,
}

/// Why the broker does not take a CONNECT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unavailable {
    /// It is not there.
    Down,
    /// Its queue is full.
    Full,
}

impl Broker {
    /// Idle; not there before `down_until`.
    pub(super) fn new(settings: &scenario::Broker, down_until: Moment) -> Self {
        Self {
            servers: settings.servers as usize,
            service: settings.service(),
            longest: settings.queue as usize,
            queue: VecDeque::new(),
            serving: BinaryHeap::new(),
            begun: 0,
            down_until,
        }
    }

    /// A CONNECT arrives.
    pub(super) fn enter(&mut self, ticket: Ticket, now: Moment) -> Result<(), Unavailable> {
        if now < self.down_until {
            return Err(Unavailable::Down);
        }
        if self.serving.len() < self.servers {
            self.begin(ticket, now);
            return Ok(());
        }
        if self.queue.len() >= self.longest {
            return Err(Unavailable::Full);
        }
        self.queue.push_back(ticket);
        Ok(())
    }

    /// When the next login is done; [`Moment::NEVER`]: there is none.
    pub(super) fn next_done(&self) -> Moment {
        self.serving
            .peek()
            .map_or(Moment::NEVER, |Reverse((done, _, _))| *done)
    }

    /// The login that [`Self::next_done`] spoke of; its server takes the next one.
    pub(super) fn pop(&mut self) -> Option<Ticket> {
        let Reverse((done, _, ticket)) = self.serving.pop()?;
        if let Some(next) = self.queue.pop_front() {
            self.begin(next, done);
        }
        Some(ticket)
    }

    /// CONNECTs that are there: in the queue and being served.
    pub(super) fn present(&self) -> usize {
        self.queue.len() + self.serving.len()
    }

    fn begin(&mut self, ticket: Ticket, now: Moment) {
        self.serving
            .push(Reverse((now + self.service, self.begun, ticket)));
        self.begun += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::super::presence::Presences;
    use super::*;

    fn at(milliseconds: u64) -> Moment {
        Moment::from_nanos(milliseconds * 1_000_000)
    }

    fn broker(servers: u32, queue: u32) -> Broker {
        let settings = scenario::Broker {
            capacity: 100.0,
            servers,
            queue,
        };
        Broker::new(&settings, at(50))
    }

    fn ticket() -> Ticket {
        Presences::default().take(7, Moment::ZERO)
    }

    #[test]
    fn it_serves_its_capacity_whatever_the_number_of_servers() {
        for servers in [1, 4] {
            let mut broker = broker(servers, 1000);
            for _ in 0..400 {
                broker.enter(ticket(), at(1000)).unwrap();
            }
            let mut last = Moment::ZERO;
            while broker.present() > 0 {
                last = broker.next_done();
                broker.pop().unwrap();
            }
            assert_eq!(last, at(5000), "{servers}");
            assert_eq!((broker.next_done(), broker.pop()), (Moment::NEVER, None));
        }
    }

    #[test]
    fn it_takes_nobody_while_it_is_down_or_full() {
        let mut broker = broker(1, 1);
        assert_eq!(broker.enter(ticket(), at(49)), Err(Unavailable::Down));
        assert_eq!(broker.enter(ticket(), at(50)), Ok(()));
        assert_eq!(broker.enter(ticket(), at(50)), Ok(()));
        assert_eq!(broker.enter(ticket(), at(50)), Err(Unavailable::Full));
        broker.pop();
        assert_eq!(broker.enter(ticket(), at(60)), Ok(()));
    }
}
