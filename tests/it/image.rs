//! The file system of the container image, entered and run: what `deploy/image/filesystem` lays out is all that is there.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::rig::daemon::{binary, configuration};
use crate::rig::process::run;
use crate::rig::{Connect, Daemon, Device, PATIENCE, Scene, Stub, report};

/// A program of the image: as its user where that may be done, else as whoever runs the tests, in a user namespace.
fn inside(root: &Path, arguments: &[&str]) -> Command {
    let mut command = if rustix::process::geteuid().is_root() {
        let mut command = Command::new("/usr/sbin/chroot");
        command.arg("--userspec=8883:8883").arg(root);
        command
    } else {
        let mut command = Command::new("/usr/bin/unshare");
        command.arg("--map-root-user").arg("--root").arg(root);
        command
    };
    command.arg("/usr/bin/seawall").args(arguments);
    command
}

fn lay_out(root: &Path) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/image/filesystem");
    run(
        "filesystem",
        Command::new(script).arg(binary()).arg(root),
        PATIENCE,
    )
    .expect(0, &[]);
}

#[tokio::test]
async fn the_daemon_serves_clients_with_nothing_but_what_is_in_the_image() {
    let scene = Scene::new();
    let root = scene.path("image");
    lay_out(&root);
    let files = files(&root);
    let bytes: u64 = files.iter().map(|file| file.metadata().unwrap().len()).sum();
    report(&format!("{} files, {:.1} MB", files.len(), bytes as f64 / 1e6));
    let known = |file: &&PathBuf| {
        let name = file.file_name().unwrap().to_str().unwrap();
        name.contains(".so.") || ["seawall", "passwd", "group", "nsswitch.conf"].contains(&name)
    };
    let other: Vec<&PathBuf> = files.iter().filter(|file| !known(file)).collect();
    assert!(other.is_empty(), "{other:?}");

    // What an orchestrator mounts: the configuration, the certificates, and how names are looked up.
    let broker = Stub::content().await;
    for file in ["ecdsa.pem", "ecdsa.key"] {
        let to = root.join("etc/seawall").join(file);
        std::fs::copy(scene.path(file), &to).unwrap();
        std::fs::set_permissions(&to, PermissionsExt::from_mode(0o644)).unwrap();
    }
    let upstream = SocketAddr::from(([127, 0, 0, 1], broker.address().port()));
    let text = configuration(&scene, upstream, &[])
        .replace(
            &upstream.to_string(),
            &format!("broker.example:{}", upstream.port()),
        )
        .replace(scene.path("").to_str().unwrap(), "/etc/seawall/");
    std::fs::write(root.join("etc/seawall/seawall.toml"), text).unwrap();
    std::fs::write(root.join("etc/hosts"), "127.0.0.1 broker.example\n").unwrap();

    let daemon = Daemon::launch(&mut inside(&root, &["run"]));
    Device::join(&daemon, Connect::v311("in-a-container"))
        .await
        .close()
        .await;
    let url = format!("http://{}/readyz", daemon.admin());
    run("health check", &mut inside(&root, &["health", &url]), PATIENCE).expect(0, &[]);
}

/// Every file below `folder`.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(self::files(&path));
        } else {
            files.push(path);
        }
    }
    files
}
