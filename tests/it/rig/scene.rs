//! A folder of its own for each scenario, and the right to measure on a quiet machine.

use super::certificates::certificates;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Scenarios that check behaviour run beside each other; one that measures time or CPU runs alone.
static MACHINE: RwLock<()> = RwLock::new(());

/// One scenario's folder, with the throw-away certificates in it.
pub struct Scene {
    folder: tempfile::TempDir,
    _turn: Turn,
}

#[expect(dead_code, reason = "held until the scenario ends")]
enum Turn {
    Shared(RwLockReadGuard<'static, ()>),
    Alone(RwLockWriteGuard<'static, ()>),
}

impl Scene {
    /// For a scenario about behaviour. At most one for each test: a second one could wait for itself.
    pub fn new() -> Self {
        Self::with(Turn::Shared(
            MACHINE.read().unwrap_or_else(PoisonError::into_inner),
        ))
    }

    /// For a scenario about time or CPU: no other one runs meanwhile.
    pub fn alone() -> Self {
        Self::with(Turn::Alone(
            MACHINE.write().unwrap_or_else(PoisonError::into_inner),
        ))
    }

    fn with(turn: Turn) -> Self {
        let scene = Self {
            folder: tempfile::tempdir().unwrap(),
            _turn: turn,
        };
        let all = certificates();
        scene.write("ca.pem", &all.authority);
        scene.write("ecdsa.pem", &all.ecdsa.chain);
        scene.write("ecdsa.key", &all.ecdsa.key);
        scene.write("rsa.pem", &all.rsa.chain);
        scene.write("rsa.key", &all.rsa.key);
        scene
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The path as it is written in a configuration.
    pub fn text_path(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    pub fn write(&self, name: &str, content: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, content).unwrap();
        // As an operator has it: the daemon warns of a key that others can read.
        if path.extension().is_some_and(|extension| extension == "key") {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        }
        path
    }
}
