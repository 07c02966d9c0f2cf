//! Hostile and ordinary configurations through the front door.

use std::path::PathBuf;

use super::{Config, Mistakes, Sources, check, keys, load};

/// The keys that must be set.
const REQUIRED: [&str; 3] = [
    "tls.certificate=c.pem",
    "tls.private_key=k.pem",
    "upstream.servers=127.0.0.1:1883",
];

fn flags(set: &[&str]) -> Sources {
    Sources {
        set: REQUIRED.iter().chain(set).map(ToString::to_string).collect(),
        ..Sources::default()
    }
}

fn with_file(text: &[u8]) -> (tempfile::TempDir, Sources) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("seawall.toml");
    std::fs::write(&path, text).unwrap();
    let sources = Sources {
        file: Some(path),
        ..flags(&[])
    };
    (folder, sources)
}

fn load_file(text: impl AsRef<[u8]>) -> Result<Config, Mistakes> {
    let (_folder, sources) = with_file(text.as_ref());
    load(&sources)
}

#[test]
fn smoke() {
    let c = load_file("[admission]\nrate = 5\n").unwrap();
    println!("{}", c.to_toml());
    println!(
        "{}",
        load_file("[admission]\nrat = 5\nburst = \"x\"\n[connect]\ntimeout = 15\nmax_size = \"64kb\"\n")
            .unwrap_err()
    );
    println!("{}", load_file("[admission]\nrate = 0x\ntimeout=5s\n[[connect]]\ntimeout = 15\nmax_size = \"64kb\"\n[log]\nlevel=\"inof\"\n").unwrap_err());
    println!(
        "{}",
        load(&Sources {
            file: Some(PathBuf::from("/nonexist")),
            searched: vec!["a".into()],
            ..Default::default()
        })
        .unwrap_err()
    );
    println!(
        "{}",
        load(&Sources {
            searched: vec!["a".into()],
            environment: vec![("SEAWALL_ADMISSION_RATE".into(), "5".into())],
            ..Default::default()
        })
        .unwrap_err()
    );
    let _ = (check(&flags(&[])).unwrap_err(), keys());
}
