//! Devices that come again and again until they are in.

use super::packet::PINGREQ;
use super::{Connect, Device};
use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::task::JoinSet;

/// Tablets, every fourth, and meters: they knock at once and `pause` after each failure, and talk once they are in.
pub fn tablets_and_meters(address: SocketAddr, devices: usize, pause: Duration) -> JoinSet<()> {
    let mut crowd = JoinSet::new();
    for number in 0..devices {
        crowd.spawn(async move {
            let kind = if number % 4 == 0 { "tablet" } else { "meter" };
            let id = format!("{kind}-{number}");
            while visit(address, &id).await.is_err() {
                tokio::time::sleep(pause).await;
            }
        });
    }
    crowd
}

async fn visit(address: SocketAddr, id: &str) -> io::Result<()> {
    let mut device = Device::try_join(address, Connect::v311(id)).await?;
    loop {
        device.try_send(&PINGREQ).await?;
        device.try_packet().await?;
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}
