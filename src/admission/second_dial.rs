//! The second dial of some libraries: a CONNECT of 3.1.1 that was refused is followed at once by one of 3.1 with the
//! same client id. It is the same device asking the same question, so it gets the same answer: it costs nothing, and
//! a lucky second dial does not leave the device talking 3.1 for good.

use std::time::Duration;

use super::Refusal;
use super::memory::{Key, Memory};
use crate::moment::Moment;

/// How soon the second dial comes: at once, which is a round trip and a handshake over a slow link.
const AT_ONCE: Duration = Duration::from_secs(1);

/// Refusals a generation, which lasts for [`AT_ONCE`]: more than one process can give in that time.
const CAPACITY: usize = 50_000;

/// What 3.1.1 clients were told within the last second or two.
#[derive(Clone, Debug)]
pub struct SecondDial {
    told: Memory<(Moment, Refusal)>,
}

impl Default for SecondDial {
    fn default() -> Self {
        Self {
            told: Memory::new(CAPACITY, AT_ONCE),
        }
    }
}

impl SecondDial {
    /// `client` has been refused in 3.1.1.
    pub fn note(&mut self, client: Key, refusal: Refusal, now: Moment) {
        self.told.put(client, (now, refusal), now);
    }

    /// What `client`, which dials in 3.1 now, has just been told.
    pub fn recall(&self, client: Key, now: Moment) -> Option<Refusal> {
        let (told, refusal) = self.told.peek(client)?;
        (now - *told <= AT_ONCE).then_some(*refusal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reason::Reason;

    #[test]
    fn the_answer_is_repeated_for_a_second() {
        let at = |milliseconds| Moment::ZERO + Duration::from_millis(milliseconds);
        let mut second = SecondDial::default();
        let refusal = Refusal::new(Reason::Rate);
        second.note(Key(1), refusal, at(5000));
        assert_eq!(second.recall(Key(1), at(5000)), Some(refusal));
        assert_eq!(second.recall(Key(1), at(6000)), Some(refusal));
        assert_eq!(second.recall(Key(1), at(6001)), None);
        assert_eq!(second.recall(Key(2), at(5000)), None);
        second.note(Key(1), Refusal::new(Reason::HoldFull), at(5500));
        assert_eq!(
            second.recall(Key(1), at(6400)).map(|refusal| refusal.reason),
            Some(Reason::HoldFull)
        );
    }
}
