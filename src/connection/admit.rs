//! From a CONNECT to its permit: at once, or after a hold, or not.

use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::time::{Instant, sleep, sleep_until};

use super::{Client, House, Life};
use crate::admission::classify::Arrival;
use crate::admission::{Outcome, Refusal, Request};
use crate::door::{Knock, Permit, Waiting};
use crate::mqtt::connect::Connect;
use crate::reason::Reason;
use crate::socket;
use crate::telemetry::ending::{Decision, Phase};

/// Most bytes of a client, its CONNECT among them, that are kept while it waits for its turn or for a dial, to notice its
/// leaving: what does not fit waits in its own socket.
const AHEAD: usize = 16 * 1024;

/// A client that has sent more than [`AHEAD`] is looked at this often instead: its EOF is behind unread bytes.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);

/// Why a CONNECT does not go on.
pub(super) enum NotAdmitted {
    /// It is answered.
    Refused(Refusal),
    /// The client left.
    Left,
}

impl Life<'_> {
    /// What the client is to the door.
    pub(super) fn arrival(&self, client: &Client, connect: &Connect) -> Arrival {
        let identity = self.attempt.identity.as_deref();
        let request = Request {
            client_id: &connect.client_id,
            username: connect.username.as_deref(),
            password: connect.password.as_deref(),
            common_name: identity.and_then(|identity| identity.common_name.as_deref()),
            server_name: client.get_ref().1.server_name(),
            source: Some(self.attempt.source.ip()),
            version: connect.version,
            persistent: connect.persistent(),
        };
        self.house.door.classify(&request)
    }

    /// Asks at the door, and waits there where it says so. A client that is gone costs no token.
    pub(super) async fn admit(
        &mut self,
        client: &mut Client,
        bytes: &mut Vec<u8>,
        arrival: &Arrival,
    ) -> Result<Permit, NotAdmitted> {
        if self.house.tasks.is_draining() {
            return Err(draining());
        }
        if socket::is_gone(client.get_ref().0) {
            return Err(NotAdmitted::Left);
        }
        let (permit, would_refuse) = match self.house.door.knock(arrival) {
            Knock::Admitted { permit, would_refuse } => (permit, would_refuse),
            Knock::Refused(refusal) => return Err(NotAdmitted::Refused(refusal)),
            Knock::Held(waiting) => {
                self.phase.to(Phase::Held);
                let held = Instant::now();
                let patience = self.house.door.patience(arrival.since);
                let turn = wait_for_turn(self.house, client, bytes, waiting, held + patience).await;
                *self.attempt.held.get_or_insert_default() += held.elapsed();
                (turn?, None)
            }
        };
        self.attempt.decision = Some(Decision::Admitted { would_refuse });
        Ok(permit)
    }
}

async fn wait_for_turn(
    house: &House,
    client: &mut Client,
    bytes: &mut Vec<u8>,
    waiting: Waiting,
    longest: Instant,
) -> Result<Permit, NotAdmitted> {
    let permit = tokio::select! {
        turn = waiting => turn.map_err(NotAdmitted::Refused)?,
        () = leaves(client, bytes) => return Err(NotAdmitted::Left),
        () = house.tasks.draining() => return Err(wait_for_notice(house, client, longest).await),
    };
    if socket::is_gone(client.get_ref().0) {
        permit.settle(Outcome::Unused);
        return Err(NotAdmitted::Left);
    }
    Ok(permit)
}

/// The rest of a held client's wait in a drain: all told at once would all come back at once. Nobody's wait gets longer.
async fn wait_for_notice(house: &House, client: &mut Client, longest: Instant) -> NotAdmitted {
    let mut ignored = Vec::new();
    tokio::select! {
        () = house.tasks.notice() => draining(),
        () = sleep_until(longest) => draining(),
        () = leaves(client, &mut ignored) => NotAdmitted::Left,
    }
}

/// Ready when the client is gone. What it sends meanwhile is kept, up to a bound that holds for all its waits together.
pub(super) async fn leaves(client: &mut Client, bytes: &mut Vec<u8>) {
    while bytes.len() < AHEAD {
        if let Ok(0) | Err(_) = client.read_buf(bytes).await {
            return;
        }
    }
    while !socket::is_gone(client.get_ref().0) {
        sleep(LOOK_INTERVAL).await;
    }
}

fn draining() -> NotAdmitted {
    NotAdmitted::Refused(Refusal::new(Reason::Draining))
}
