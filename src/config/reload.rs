//! The configuration read again while a process runs by an earlier one: what takes effect, and what does not.

use std::fmt;

use config::{Map, Value, ValueKind};

use super::keys::{Change, Key};
use super::layer::Layer;
use super::mistake::printable;
use super::{Config, Gathered, Mistakes, Sources, files};

/// What came of it.
#[derive(Clone, Debug)]
pub struct Reloaded {
    /// What is to be in effect from now on: legal as a whole.
    pub config: Config,
    /// What takes effect with it.
    pub changed: Vec<Difference>,
    /// What was asked for and takes effect on restart alone: in `config` it is as it was.
    pub refused: Vec<Difference>,
}

/// A key that says something else than before.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// Its path.
    pub path: String,
    /// As it was, secrets masked.
    pub from: toml::Value,
    /// As it is asked for, secrets masked.
    pub to: toml::Value,
}

/// Reads all sources again, and opens what they name. Fails, as at a start, with every mistake in them, and where what
/// takes effect would contradict what does not.
pub fn reload(sources: &Sources, running: &Config) -> Result<Reloaded, Mistakes> {
    let mut gathered = Gathered::of(sources);
    let asked = gathered.read(|_, _| {})?;
    let (changed, refused): (Vec<&Key>, Vec<&Key>) = asked
        .keys()
        .iter()
        .filter(|key| before(running, key) != Some(*key))
        .partition(|key| key.change == Change::OnReload);
    let kept = refused.iter().filter_map(|key| before(running, key));
    gathered
        .layers
        .extend(kept.map(|key| Layer::of(&key.path, key.exact())));
    let config = gathered.read(files::inspect)?;
    let differences = |keys: Vec<&Key>| keys.into_iter().map(|key| Difference::of(running, key)).collect();
    Ok(Reloaded {
        config,
        changed: differences(changed),
        refused: differences(refused),
    })
}

fn before<'a>(running: &'a Config, key: &Key) -> Option<&'a Key> {
    running.keys().iter().find(|known| known.path == key.path)
}

impl Difference {
    fn of(running: &Config, key: &Key) -> Self {
        let nothing = toml::Value::String(String::new());
        Self {
            path: key.path.clone(),
            from: before(running, key).map_or(nothing, |known| known.value.clone()),
            to: key.value.clone(),
        }
    }
}

/// `admission.rate: 50 → 500`, in one line. Of a secret the part that differs may be the one that is not shown.
impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.from == self.to {
            return write!(f, "{}: changed, secret not shown", self.path);
        }
        let shown = |value: &toml::Value| printable(&value.to_string());
        write!(f, "{}: {} → {}", self.path, shown(&self.from), shown(&self.to))
    }
}

impl Layer {
    /// One that says `value` at `path`, and that nobody has written anywhere.
    fn of(path: &str, value: &toml::Value) -> Self {
        Self(path.split('.').rev().fold(unwritten(value), |inner, name| {
            Value::new(None, ValueKind::Table(Map::from([(name.to_owned(), inner)])))
        }))
    }
}

fn unwritten(value: &toml::Value) -> Value {
    let kind = match value {
        toml::Value::String(text) => ValueKind::String(text.clone()),
        toml::Value::Integer(integer) => ValueKind::I64(*integer),
        toml::Value::Float(float) => ValueKind::Float(*float),
        toml::Value::Boolean(boolean) => ValueKind::Boolean(*boolean),
        // No key is a date.
        toml::Value::Datetime(_) => ValueKind::Nil,
        toml::Value::Array(items) => ValueKind::Array(items.iter().map(unwritten).collect()),
        toml::Value::Table(table) => ValueKind::Table(
            table
                .iter()
                .map(|(name, value)| (name.clone(), unwritten(value)))
                .collect(),
        ),
    };
    Value::new(None, kind)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::load;

    fn sources(file: &Path, text: &str) -> Sources {
        std::fs::write(file, text).unwrap();
        Sources {
            file: Some(file.to_owned()),
            ..Sources::default()
        }
    }

    /// What comes of `after` in a process that runs by `before`; `certs` stands for a folder with certificates.
    fn reloaded(before: &str, after: &str) -> Result<Reloaded, String> {
        let folder = tempfile::tempdir().unwrap();
        let key = rcgen::KeyPair::generate().unwrap();
        let params = rcgen::CertificateParams::new(["localhost".to_owned()]).unwrap();
        let certificate = params.self_signed(&key).unwrap();
        std::fs::write(
            folder.path().join("pem"),
            certificate.pem() + &key.serialize_pem(),
        )
        .unwrap();
        let pem = folder.path().join("pem");
        let required = format!(
            "tls.certificate = {pem:?}\ntls.private_key = {pem:?}\nupstream.servers = [\"127.0.0.1:1\"]\n"
        );
        let text = |more: &str| {
            format!(
                "{required}{}",
                more.replace("certs", folder.path().to_str().unwrap())
            )
        };
        let file = folder.path().join("seawall.toml");
        let running = load(&sources(&file, &text(before))).unwrap();
        reload(&sources(&file, &text(after)), &running).map_err(|mistakes| mistakes.to_string())
    }

    fn shown(differences: &[Difference]) -> Vec<String> {
        differences.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn what_may_change_does_and_what_may_not_is_named_with_both_values() {
        let before = "admission.rate = 50\nlisten.backlog = 100\nlisten.addresses = [\"127.0.0.1:0\"]";
        let after = "admission.rate = 500\nlisten.backlog = 200\nlisten.addresses = [\"127.0.0.1:2\", \"[::1]:2\"]\n\
                     tls.min_version = \"1.3\"\nlog.level = \"debug\"";
        let reloaded = reloaded(before, after).unwrap();
        assert_eq!(
            shown(&reloaded.changed),
            ["admission.rate: 50 → 500", "log.level: \"info\" → \"debug\""]
        );
        assert_eq!(
            shown(&reloaded.refused),
            [
                "listen.addresses: [\"127.0.0.1:0\"] → [\"127.0.0.1:2\", \"[::1]:2\"]",
                "listen.backlog: 100 → 200",
                "tls.min_version: \"1.2\" → \"1.3\"",
            ]
        );
        let config = reloaded.config;
        assert_eq!((config.listen.backlog, config.admission.rate), (100, 500.0));
        assert_eq!(config.listen.addresses, ["127.0.0.1:0".parse().unwrap()]);
        assert_eq!(config.tls.min_version, crate::tls::MinVersion::V1_2);
    }

    #[test]
    fn a_mistake_changes_nothing() {
        for wrong in [
            "admission.rate = \"fast\"",
            "admission.burst = 0.5",
            "nonsense = 1",
            "admission.rate = [",
        ] {
            assert!(
                reloaded("", &format!("admission.rate = 500\n{wrong}")).is_err(),
                "{wrong}"
            );
        }
        let missing = reloaded(
            "",
            "[[tls.hosts]]\nname = \"a.example\"\ncertificate = \"certs/no\"\nprivate_key = \"certs/no\"",
        );
        assert!(missing.unwrap_err().contains("tls.hosts[0].certificate"));
    }

    /// With authentication off, which a reload can't turn on, an authority makes no sense.
    #[test]
    fn what_takes_effect_must_fit_to_what_does_not() {
        let error = reloaded(
            "",
            "tls.client_auth = \"required\"\ntls.client_ca = \"certs/pem\"",
        )
        .unwrap_err();
        assert!(
            error.contains("tls.client_ca: no client is asked for a certificate"),
            "{error}"
        );
    }

    #[test]
    fn nothing_changed_is_no_difference() {
        let every_key = std::fs::read_to_string("tests/config/valid/every-key.toml").unwrap();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("seawall.toml");
        let sources = sources(&file, &every_key);
        let running = load(&sources).unwrap();
        let mut gathered = Gathered::of(&sources);
        // Every key as it would be kept, on top of all.
        let layers = running.keys().iter().map(|key| Layer::of(&key.path, key.exact()));
        gathered.layers.extend(layers);
        assert_eq!(gathered.read(|_, _| {}).unwrap(), running);
    }

    /// Keys that hold a secret: two values that differ in it alone, a third, and what is said of first and third.
    const SECRETS: &[(&str, [&str; 3], &str)] = &[(
        "shared_budget.redis",
        [
            "redis://:first-pass@cache/1",
            "redis://:other-pass@cache/1",
            "redis://us:third-pass@cache/2",
        ],
        "\"redis://:***@cache/1\" → \"redis://us:***@cache/2\"",
    )];

    #[test]
    fn a_secret_is_compared_as_it_is_and_shown_masked() {
        let secret: Vec<String> = crate::config::keys()
            .into_iter()
            .filter(|key| key.secret.is_some())
            .map(|key| key.path)
            .collect();
        let listed: Vec<&str> = SECRETS.iter().map(|(path, ..)| *path).collect();
        assert_eq!(secret, listed, "every secret has its row");
        for (path, values, between) in SECRETS {
            let [first, other, third] = values.map(|value| format!("{path} = \"{value}\""));
            let same = reloaded(&first, &first).unwrap();
            assert_eq!((same.changed.len(), same.refused.len()), (0, 0), "{path}");
            let running = same.config.keys().to_vec();
            for (asked, said) in [(&other, "changed, secret not shown"), (&third, between)] {
                let reloaded = reloaded(&first, asked).unwrap();
                let differences = [&reloaded.changed[..], &reloaded.refused].concat();
                assert_eq!(shown(&differences), [format!("{path}: {said}")]);
                // What is refused stays as it was, secret and all.
                if !reloaded.refused.is_empty() {
                    let kept = |key: &Key| running.iter().any(|known| known == key);
                    assert!(
                        reloaded
                            .config
                            .keys()
                            .iter()
                            .filter(|key| key.path == *path)
                            .all(kept),
                        "{path}"
                    );
                }
                let seen = format!("{reloaded:?}{}", reloaded.config.to_toml());
                assert!(!seen.contains("-pass"), "{seen}");
            }
        }
    }
}
