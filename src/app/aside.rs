//! Work that waits for disks or computes, beside the threads of the connections.

use std::io;

use tokio::sync::oneshot;

/// Does `work` on a thread of its own. One at a time: who asks waits for it.
pub(super) async fn aside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
    let (done, result) = oneshot::channel();
    std::thread::Builder::new()
        .name("seawall-reload".to_owned())
        .spawn(move || done.send(work()))?;
    result.await.map_err(io::Error::other)
}
