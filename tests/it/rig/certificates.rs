//! A throw-away certificate authority and server certificates for `localhost`.

use super::Scene;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, DnType, IsCa,
    KeyIdMethod, KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, PKCS_RSA_SHA256, SerialNumber,
    SignatureAlgorithm,
};
use std::sync::OnceLock;
use time::OffsetDateTime;

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

/// Writes `NAME.pem`, an authority, and `NAME.crl`, its list that holds until `ends`.
pub fn authority_with_list(scene: &Scene, name: &str, ends: OffsetDateTime) {
    let authority = authority(name);
    let list = CertificateRevocationListParams {
        this_update: ends - time::Duration::days(30),
        next_update: ends,
        crl_number: SerialNumber::from(1),
        issuing_distribution_point: None,
        revoked_certs: Vec::new(),
        key_identifier_method: KeyIdMethod::Sha256,
    };
    scene.write(&format!("{name}.pem"), &authority.pem());
    scene.write(
        &format!("{name}.crl"),
        &list.signed_by(&authority).unwrap().pem().unwrap(),
    );
}

fn make() -> Certificates {
    let authority = authority("Throw-away authority");
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

fn authority(name: &str) -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.distinguished_name.push(DnType::CommonName, name);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}
