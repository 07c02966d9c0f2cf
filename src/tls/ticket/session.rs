//! What rustls writes into a ticket: read strictly, for the client's certificates in it.

use rustls_pki_types::CertificateDer;

use crate::tls::wire::Reader;

/// The certificate chain that the client of a session proved, its own first; empty when it proved none. `None` when the
/// bytes are not what rustls 0.23 writes (`ServerSessionValue` in `msgs/persist.rs`): the library gives no access to them before
/// it resumes, and of a session that can't be read it can't be said whether its client is still welcome.
pub(super) fn client_chain(session: &[u8]) -> Option<Vec<CertificateDer<'_>>> {
    const VERSIONS: [u16; 2] = [0x0303, 0x0304];
    let mut reader = Reader::new(session);
    if flag(&mut reader)? {
        let _server_name = reader.vector8()?;
    }
    let version = reader.uint16()?;
    let _cipher_suite = reader.uint16()?;
    let _master_secret = reader.vector8()?;
    let _extended_master_secret = flag(&mut reader)?;
    let chain = if flag(&mut reader)? {
        certificates(reader.vector24()?)?
    } else {
        Vec::new()
    };
    if flag(&mut reader)? {
        let _protocol = reader.vector8()?;
    }
    let _application_data = reader.vector16()?;
    let _created_at = reader.uint64()?;
    let _age_obfuscation_offset = reader.uint32()?;
    (reader.is_empty() && VERSIONS.contains(&version)).then_some(chain)
}

/// One certificate or more.
fn certificates(list: &[u8]) -> Option<Vec<CertificateDer<'_>>> {
    let mut reader = Reader::new(list);
    let mut chain = vec![CertificateDer::from(reader.vector24()?)];
    while !reader.is_empty() {
        chain.push(CertificateDer::from(reader.vector24()?));
    }
    Some(chain)
}

fn flag(reader: &mut Reader<'_>) -> Option<bool> {
    match reader.uint8()? {
        0 => Some(false),
        1 => Some(true),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Written from `impl Codec for ServerSessionValue` of rustls 0.23.46.
    fn session(server_name: &str, certificates: &[&[u8]], protocol: &str) -> Vec<u8> {
        let mut bytes = Vec::new();
        if server_name.is_empty() {
            bytes.push(0);
        } else {
            bytes.extend([1, server_name.len() as u8]);
            bytes.extend(server_name.as_bytes());
        }
        bytes.extend([3, 4, 0x13, 1, 4, 9, 9, 9, 9, 0]);
        if certificates.is_empty() {
            bytes.push(0);
        } else {
            let length: usize = certificates.iter().map(|one| 3 + one.len()).sum();
            bytes.extend([1, 0, (length >> 8) as u8, length as u8]);
            for one in certificates {
                bytes.extend([0, (one.len() >> 8) as u8, one.len() as u8]);
                bytes.extend(*one);
            }
        }
        if protocol.is_empty() {
            bytes.push(0);
        } else {
            bytes.extend([1, protocol.len() as u8]);
            bytes.extend(protocol.as_bytes());
        }
        bytes.extend([0, 2, 7, 7]);
        bytes.extend(1_800_000_000_u64.to_be_bytes());
        bytes.extend([1, 2, 3, 4]);
        bytes
    }

    #[test]
    fn the_chain_is_found_wherever_it_stands() {
        for name in ["", "localhost"] {
            for protocol in ["", "mqtt"] {
                for chain in [&[][..], &[&[1; 300][..]], &[&[1; 5], &[2; 700], &[3; 1]]] {
                    let session = session(name, chain, protocol);
                    let found = client_chain(&session).expect("a session");
                    let found: Vec<&[u8]> = found.iter().map(AsRef::as_ref).collect();
                    assert_eq!(found, chain);
                }
            }
        }
    }

    #[test]
    fn any_other_layout_is_none() {
        let whole = session("localhost", &[&[1; 30]], "mqtt");
        for length in 0..whole.len() {
            assert_eq!(client_chain(&whole[..length]), None, "cut at {length}");
        }
        assert_eq!(client_chain(&[&whole[..], &[0]].concat()), None, "one more byte");
        let flags = [0, 11 + 4 + 5, 11 + 4 + 5 + 1];
        for at in flags {
            let mut other = whole.clone();
            other[at] = 2;
            assert_eq!(client_chain(&other), None, "no flag at {at}");
        }
        let mut other = whole;
        other[12] = 5;
        assert_eq!(client_chain(&other), None, "another version");
        let mut empty_list = session("", &[&[]], "");
        assert!(client_chain(&empty_list).is_some());
        empty_list.splice(12..18, [0, 0, 0]);
        assert_eq!(client_chain(&empty_list), None, "a chain without certificates");
    }
}
