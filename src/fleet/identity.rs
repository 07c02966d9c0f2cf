//! Who connects: the CONNECT of a device.

use std::fmt;
use std::sync::Arc;

use bytes::{BufMut, BytesMut};

use crate::mqtt::Version;

/// Seconds that a broker keeps a persistent session of 5.0 after its connection: longer than any storm, short enough
/// that what a trial leaves behind is gone after lunch.
const SESSION_EXPIRY: u32 = 3600;
/// A string of MQTT (section 1.5.3 of 3.1.1) is at most this long.
const LONGEST_STRING: usize = 65_535;

/// User name and password, the same for a whole fleet.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// `{n}` in it stands for the number of the device.
    pub username: String,
    /// Binary, as MQTT has it.
    pub password: Option<Vec<u8>>,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials")
            .field("username", &self.username)
            .finish_non_exhaustive()
    }
}

/// Who connects, and how.
#[derive(Clone, Debug)]
pub(super) struct Identity {
    pub(super) client_id: String,
    /// 3.1.1 or 5.0.
    pub(super) version: Version,
    /// Seconds.
    pub(super) keep_alive: u16,
    /// The broker keeps the session when the connection ends.
    pub(super) persistent: bool,
    pub(super) credentials: Option<Arc<Credentials>>,
    /// What `{n}` stands for.
    pub(super) number: usize,
}

/// The caller's: an identifier, user name or password that no CONNECT can carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("client id, user name and password are at most {LONGEST_STRING} bytes each")]
pub(super) struct TooLong;

impl Identity {
    /// The CONNECT: MQTT 3.1.1 and 5.0, section 3.1.
    pub(super) fn connect(&self) -> Result<BytesMut, TooLong> {
        let is_v5 = self.version == Version::V5;
        let mut rest = BytesMut::new();
        put_string(b"MQTT", &mut rest)?;
        rest.put_u8(if is_v5 { 5 } else { 4 });
        rest.put_u8(self.flags());
        rest.put_u16(self.keep_alive);
        match (is_v5, self.persistent) {
            (true, true) => {
                rest.extend_from_slice(&[5, 0x11]);
                rest.put_u32(SESSION_EXPIRY);
            }
            (true, false) => rest.put_u8(0),
            (false, _) => {}
        }
        put_string(self.client_id.as_bytes(), &mut rest)?;
        if let Some(credentials) = &self.credentials {
            let username = credentials.username.replace("{n}", &self.number.to_string());
            put_string(username.as_bytes(), &mut rest)?;
            if let Some(password) = &credentials.password {
                put_string(password, &mut rest)?;
            }
        }
        let mut whole = BytesMut::with_capacity(rest.len() + 5);
        whole.put_u8(0x10);
        super::packet::write_length(rest.len(), &mut whole);
        whole.extend_from_slice(&rest);
        Ok(whole)
    }

    fn flags(&self) -> u8 {
        let clean = u8::from(!self.persistent) << 1;
        let (username, password) = match &self.credentials {
            None => (0, 0),
            Some(credentials) => (0x80, u8::from(credentials.password.is_some()) << 6),
        };
        clean | username | password
    }
}

fn put_string(text: &[u8], out: &mut BytesMut) -> Result<(), TooLong> {
    out.put_u16(u16::try_from(text.len()).map_err(|_| TooLong)?);
    out.extend_from_slice(text);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(version: Version, persistent: bool, credentials: Option<Credentials>) -> Identity {
        Identity {
            client_id: "d".into(),
            version,
            keep_alive: 60,
            persistent,
            credentials: credentials.map(Arc::new),
            number: 17,
        }
    }

    #[test]
    fn connects_are_those_of_the_specifications() {
        let login = |password: Option<&[u8]>| {
            Some(Credentials {
                username: "u{n}".into(),
                password: password.map(<[u8]>::to_vec),
            })
        };
        let cases: [(Identity, &[u8]); 5] = [
            (
                identity(Version::V3_1_1, false, None),
                b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x3c\x00\x01d",
            ),
            (
                identity(Version::V3_1_1, true, None),
                b"\x10\x0d\x00\x04MQTT\x04\x00\x00\x3c\x00\x01d",
            ),
            (
                identity(Version::V3_1_1, false, login(Some(b"\xff"))),
                b"\x10\x15\x00\x04MQTT\x04\xc2\x00\x3c\x00\x01d\x00\x03u17\x00\x01\xff",
            ),
            (
                identity(Version::V5, false, login(None)),
                b"\x10\x13\x00\x04MQTT\x05\x82\x00\x3c\x00\x00\x01d\x00\x03u17",
            ),
            (
                identity(Version::V5, true, None),
                b"\x10\x13\x00\x04MQTT\x05\x00\x00\x3c\x05\x11\x00\x00\x0e\x10\x00\x01d",
            ),
        ];
        for (identity, expected) in cases {
            assert_eq!(&identity.connect().unwrap()[..], expected, "{identity:?}");
        }
    }

    #[test]
    fn what_no_connect_can_carry_is_an_error() {
        let credentials = Credentials {
            username: String::new(),
            password: Some(vec![0; LONGEST_STRING + 1]),
        };
        assert_eq!(
            identity(Version::V5, false, Some(credentials)).connect(),
            Err(TooLong)
        );
    }

    #[test]
    fn a_password_is_not_shown() {
        let credentials = Credentials {
            username: "u".into(),
            password: Some(b"secret".to_vec()),
        };
        assert!(!format!("{credentials:?}").contains("115"), "{credentials:?}");
    }
}
