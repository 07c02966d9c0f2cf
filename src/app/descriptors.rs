//! Whether the descriptors of the process are enough for anybody.

use std::io;

/// Descriptors of one relayed connection: downstream and upstream.
const CONNECTION: u64 = 2;

/// Descriptors that come and go: one who looks at the admin page, the lookup of a name, a probe of a broker, the head of the
/// audit log, a file that is read again.
const PASSING: u64 = 6;

/// More are open already than leave room for a connection: the operating system's (exit 71).
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the descriptor limit is {limit}: Seawall itself needs {own}, and {CONNECTION} for each connection; raise LimitNOFILE of the \
     unit (`ulimit -n`) to {} at least", .own + CONNECTION
)]
pub struct TooFewDescriptors {
    limit: u64,
    own: u64,
}

/// Looks whether a connection fits under `limit`, with everything open that stays open.
pub(super) fn suffice(limit: u64) -> Result<(), TooFewDescriptors> {
    match open() {
        Ok(open) => judge(limit, open),
        // Not even one to look.
        Err(error) if error.kind() != io::ErrorKind::NotFound => judge(limit, limit),
        // Nobody can look without /proc.
        Err(_) => Ok(()),
    }
}

fn judge(limit: u64, open: u64) -> Result<(), TooFewDescriptors> {
    let own = open.saturating_add(PASSING);
    if own.saturating_add(CONNECTION) > limit {
        return Err(TooFewDescriptors { limit, own });
    }
    Ok(())
}

/// How many are open.
fn open() -> io::Result<u64> {
    let open = std::fs::read_dir("/proc/self/fd")?.count() as u64;
    // That which looks.
    Ok(open.saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_has_to_fit_beside_what_is_open() {
        for (limit, open, enough) in [
            (16, 15, false),
            (24, 17, false),
            (25, 17, true),
            (0, 0, false),
            (u64::MAX, 17, true),
            (u64::MAX, u64::MAX, true),
        ] {
            assert_eq!(judge(limit, open).is_ok(), enough, "{open} of {limit}");
        }
        let said = judge(16, 15).unwrap_err().to_string();
        assert!(
            said.contains("limit is 16") && said.contains("to 23 at least"),
            "{said}"
        );
        assert!(suffice(3).is_err() && suffice(u64::MAX).is_ok());
    }
}
