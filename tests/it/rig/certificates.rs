//! A throw-away certificate authority and server certificates for `localhost`.

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, KeyUsagePurpose,
    PKCS_ECDSA_P256_SHA256, PKCS_RSA_SHA256, SignatureAlgorithm,
};
use std::sync::OnceLock;

/// One authority, two servers.
pub struct Certificates {
    pub authority: String,
    pub ecdsa: Server,
    pub rsa: Server,
}

/// PEM texts.
pub struct Server {
    pub chain: String,
    pub key: String,
}

/// Those of this process, made once.
pub fn certificates() -> &'static Certificates {
    static ONCE: OnceLock<Certificates> = OnceLock::new();
    ONCE.get_or_init(make)
}

fn make() -> Certificates {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
        .distinguished_name
        .push(DnType::CommonName, "Throw-away authority");
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    Certificates {
        ecdsa: server(&authority, &PKCS_ECDSA_P256_SHA256),
        rsa: server(&authority, &PKCS_RSA_SHA256),
        authority: authority.pem(),
    }
}

fn server(authority: &CertifiedIssuer<'_, KeyPair>, algorithm: &'static SignatureAlgorithm) -> Server {
    let key = KeyPair::generate_for(algorithm).unwrap();
    let mut params = CertificateParams::new(["localhost".to_owned(), "127.0.0.1".to_owned()]).unwrap();
    params.distinguished_name.push(DnType::CommonName, "localhost");
    params.use_authority_key_identifier_extension = true;
    let certificate = params.signed_by(&key, authority).unwrap();
    Server {
        chain: certificate.pem(),
        key: key.serialize_pem(),
    }
}
