//! AUTH packets before the CONNACK (MQTT 5.0 section 4.12): passed on as they are, and held against nobody but the client.

use crate::rig::device::hex;
use crate::rig::packet::{self, connack_v5};
use crate::rig::{Connect, Daemon, Device, End, PATIENCE, Scene, Stub, within};
use std::time::Duration;

const METHOD: &str = "K1";

fn connect_with_method() -> Vec<u8> {
    let property = [&[0x15][..], &packet::text(METHOD.as_bytes())].concat();
    Connect {
        properties: &property,
        ..Connect::v5("careful")
    }
    .bytes()
}

#[tokio::test]
async fn auth_rounds_come_before_the_connack() {
    let scene = Scene::new();
    let broker = Stub::start(|mut link| async move {
        link.packet().await;
        for round in 0..3 {
            link.send(&packet::auth(METHOD, &[b'?', round])).await;
            let answer = link.packet().await.unwrap();
            assert_eq!(hex(&answer), hex(&packet::auth(METHOD, &[b'!', round])));
        }
        link.send(&connack_v5(0)).await;
        link.echo().await;
    })
    .await;
    let daemon = Daemon::start(&scene, broker.address(), &[]);
    let mut device = Device::dial(&daemon).await;
    device.send(&connect_with_method()).await;
    for round in 0..3 {
        device.expect_packet(&packet::auth(METHOD, &[b'?', round])).await;
        device.send(&packet::auth(METHOD, &[b'!', round])).await;
    }
    device.expect_packet(&connack_v5(0)).await;
    device.send(&packet::PINGREQ).await;
    device.expect_packet(&packet::PINGREQ).await;
    let metrics = daemon.counts("seawall_broker_connacks_total", &[], 1.0).await;
    assert_eq!(metrics.sum("seawall_upstream_in_flight", &[]), 0.0);
}

/// What a client says to a question: nothing, a part of an answer, or always the same.
#[derive(Clone, Copy, Debug)]
enum Reply {
    Nothing,
    Part,
    Again,
}

/// More clients that never get through than a breaker would open after: it stays closed, and so do window and rate.
#[tokio::test]
async fn an_authentication_without_end_is_no_failure_of_the_broker() {
    let scene = Scene::new();
    let broker = Stub::start(|mut link| async move {
        while let Some(packet) = link.packet().await {
            if packet[0] == 0x10 && !packet.ends_with(b"careful") {
                link.send(&packet::accepted(4)).await;
            } else {
                link.send(&packet::auth(METHOD, b"again")).await;
            }
        }
    })
    .await;
    let settings = [
        ("connect.timeout", r#""500ms""#),
        ("upstream.breaker.failures", "2"),
    ];
    let daemon = Daemon::start(&scene, broker.address(), &settings);
    let cases = [(Reply::Nothing, 0x80), (Reply::Part, 0x80), (Reply::Again, 0x8C)];
    let mut came = 0;
    for (reply, code) in cases {
        for _ in 0..3 {
            let mut device = Device::dial(&daemon).await;
            device.send(&connect_with_method()).await;
            let answer = async {
                loop {
                    let packet = device.try_packet().await.expect("a CONNACK");
                    if packet[0] == 0x20 {
                        return packet;
                    }
                    let answer = packet::auth(METHOD, b"and again");
                    let said = match reply {
                        Reply::Nothing => &[],
                        Reply::Part => &answer[..3],
                        Reply::Again => &answer[..],
                    };
                    // The daemon may have ended it already.
                    let _ = device.try_send(said).await;
                }
            };
            let answer = within(PATIENCE, "the end of the authentication", answer).await;
            assert_eq!(hex(&answer), hex(&connack_v5(code)), "{reply:?}");
            assert_eq!(device.rest(PATIENCE).await.1, End::Clean);
            broker.visit(came).await.end().await;
            came += 1;
        }
        daemon.counts("seawall_upstream_in_flight", &[], 0.0).await;
    }
    let metrics = daemon
        .counts("seawall_closed_total", &[("side", "proxy")], 9.0)
        .await;
    assert_eq!(metrics.sum("seawall_upstream_breaker", &[]), 0.0);
    assert_eq!(metrics.sum("seawall_refused_total", &[]), 0.0);
    let admitted = [("decision", "admitted")];
    assert_eq!(metrics.sum("seawall_connects_total", &admitted), 9.0);
    let _next = Device::join(&daemon, Connect::v311("next")).await;
}

/// A client gets its own time for its answer, and what it took is not the broker's latency.
#[tokio::test]
async fn a_slow_answer_is_awaited_and_not_counted_as_the_brokers() {
    let scene = Scene::new();
    let broker = Stub::start(|mut link| async move {
        link.packet().await;
        link.send(&packet::auth(METHOD, b"?")).await;
        link.packet().await;
        link.send(&connack_v5(0)).await;
        link.listen().await;
    })
    .await;
    let settings = [("upstream.connack_timeout", r#""600ms""#)];
    let daemon = Daemon::start(&scene, broker.address(), &settings);
    let mut device = Device::dial(&daemon).await;
    device.send(&connect_with_method()).await;
    device.expect_packet(&packet::auth(METHOD, b"?")).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    device.send(&packet::auth(METHOD, b"!")).await;
    device.expect_packet(&connack_v5(0)).await;
    let metrics = daemon.counts("seawall_broker_connacks_total", &[], 1.0).await;
    let latency = metrics.sum("seawall_connack_seconds_sum", &[]);
    assert!(latency < 0.6, "{latency}");
}
