use std::net::{SocketAddr, TcpListener};
use std::path::Path;

use tokio::net::UnixListener;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::*;

fn door(path: &Path) -> (Door, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    (
        Door::open(path, vec![(address, listener.into())]).unwrap(),
        address,
    )
}

#[tokio::test]
async fn a_successor_gets_the_sockets_and_the_predecessor_knows_when_it_may_go() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("takeover");
    assert!(ask(&path).await.unwrap().is_none(), "nobody is there");
    let (door, address) = door(&path);
    let finishing = std::cell::Cell::new(true);
    let before = async {
        let successor = door.successor(&mut JoinSet::new()).await.serves().await.unwrap();
        sleep(Duration::from_millis(50)).await;
        finishing.set(false);
        drop(successor);
    };
    let after = async {
        let (predecessor, listeners) = ask(&path).await.unwrap().unwrap();
        let addresses: Vec<SocketAddr> = listeners.iter().map(|one| one.local_addr().unwrap()).collect();
        assert_eq!(addresses, [address]);
        let predecessor = predecessor.take().await.unwrap().unwrap();
        predecessor.release().await;
        assert!(!finishing.get(), "it lets nobody in any more");
        listeners
    };
    let ((), listeners) = tokio::join!(before, after);
    drop(door);
    // The socket lives on, and the path that nobody listens at is nobody.
    let client = std::net::TcpStream::connect(address).unwrap();
    assert_eq!(listeners[0].accept().unwrap().1, client.local_addr().unwrap());
    assert!(ask(&path).await.unwrap().is_none());
}

#[tokio::test]
async fn a_successor_that_goes_away_leaves_everything_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("takeover");
    let (door, _) = door(&path);
    let before = async {
        let mut asking = JoinSet::new();
        let successor = door.successor(&mut asking).await;
        assert!(successor.serves().await.is_none());
        assert!(door.successor(&mut asking).await.serves().await.is_some());
    };
    let after = async {
        // One that has not asked, one that never serves, and one that does.
        drop(ask(&path).await.unwrap());
        let (predecessor, _) = ask(&path).await.unwrap().unwrap();
        drop(predecessor.take().await.unwrap());
        let (predecessor, _) = ask(&path).await.unwrap().unwrap();
        let predecessor = predecessor.take().await.unwrap().unwrap();
        predecessor.release().await;
    };
    tokio::join!(before, after);
}

#[tokio::test]
async fn a_predecessor_that_has_died_is_not_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("takeover");
    let (door, _) = door(&path);
    let mut asking = JoinSet::new();
    let before = async {
        tokio::select! {
            _ = door.successor(&mut asking) => panic!("nobody has asked"),
            () = sleep(Duration::from_millis(200)) => {}
        }
    };
    let (asked, ()) = tokio::join!(ask(&path), before);
    let (predecessor, listeners) = asked.unwrap().unwrap();
    drop((door, asking));
    assert!(predecessor.take().await.unwrap().is_none());
    assert_eq!(listeners.len(), 1, "its sockets are good");
}

#[tokio::test]
async fn of_two_successors_one_is_told_that_it_is_too_late() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("takeover");
    let (first, _) = door(&path);
    let mut asking = JoinSet::new();
    let before = async {
        let successor = first.successor(&mut asking).await.serves().await.unwrap();
        drop((first, asking, successor));
    };
    let after = async {
        let (late, _) = ask(&path).await.unwrap().unwrap();
        let (predecessor, _) = ask(&path).await.unwrap().unwrap();
        let predecessor = predecessor.take().await.unwrap().unwrap();
        // As a process does it: it can be asked before the one before it may go.
        let (second, _) = door(&path);
        predecessor.release().await;
        let error = late.take().await.map(|_| ()).unwrap_err().to_string();
        assert!(error.contains("another process has taken over"), "{error}");
        drop(second);
    };
    tokio::join!(before, after);
}

#[tokio::test]
async fn what_is_no_socket_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("precious");
    std::fs::write(&path, "precious").unwrap();
    let error = ask(&path).await.map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("is no socket"), "{error}");
    let error = Door::open(&path, Vec::new()).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("is no socket"), "{error}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
}

#[tokio::test]
async fn who_speaks_another_language_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("takeover");
    let other = UnixListener::bind(&path).unwrap();
    let speaking = async {
        let (mut stream, _) = other.accept().await.unwrap();
        stream.write_all(b"HTTP/1.1 400\n").await.unwrap();
    };
    let (asked, ()) = tokio::join!(ask(&path), speaking);
    let error = asked.map(|_| ()).unwrap_err().to_string();
    assert!(
        error.contains("listen.takeover") && error.contains("another language"),
        "{error}"
    );
}
