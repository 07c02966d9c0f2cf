//! What the configuration says ([`raw`]-level) and what it means (this type): a value that exists is legal.

/// The whole configuration, validated.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// `[listen]`
    pub listen: crate::listener::Settings,
    /// `[tls]`
    pub tls: crate::tls::Settings,
    /// `[handshake]` and `[connect]`
    pub connection: crate::connection::Settings,
    /// `[admission]`
    pub admission: crate::admission::Settings,
    /// `[refusal]`
    pub refusal: crate::refusal::Settings,
    /// `[upstream]`
    pub upstream: crate::upstream::Settings,
    /// `[relay]`
    pub relay: crate::relay::Settings,
    /// `[admin]`
    pub admin: crate::admin::Settings,
    /// `[log]`
    pub log: crate::telemetry::log::Settings,
}
