"""What a device expects of its broker, with paho-mqtt: QoS 0, 1 and 2, retained messages, Wills, persistent sessions.

usage: paho_session.py HOST PORT CA_FILE VERSION     (VERSION is 3.1, 3.1.1 or 5)

Prints a line for each expectation met; ends with 1 and a message at the first that was not.
"""

import queue
import socket
import ssl
import struct
import sys
import uuid

import paho.mqtt.client as mqtt
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

PATIENCE = 15
PROTOCOLS = {"3.1": mqtt.MQTTv31, "3.1.1": mqtt.MQTTv311, "5": mqtt.MQTTv5}


class Device:
    """A client with blocking methods."""

    def __init__(self, place, client_id, clean=True, will=None):
        host, port, ca_file, version = place
        self.version = version
        self.clean = clean
        self.inbox = queue.Queue()
        self.connected = queue.Queue()
        self.subscribed = queue.Queue()
        self.session_present = None
        arguments = {} if version == "5" else {"clean_session": clean}
        self.client = mqtt.Client(
            mqtt.CallbackAPIVersion.VERSION2, client_id=client_id, protocol=PROTOCOLS[version], **arguments
        )
        self.client.tls_set_context(ssl.create_default_context(cafile=ca_file))
        self.client.on_connect = self._on_connect
        self.client.on_message = lambda _client, _data, message: self.inbox.put(message)
        self.client.on_subscribe = lambda *_: self.subscribed.put(True)
        if will:
            self.client.will_set(will, f"will of {client_id}", qos=1)
        self.place = (host, int(port))

    def _on_connect(self, _client, _data, flags, reason, _properties):
        self.session_present = flags.session_present
        self.connected.put(reason)

    def connect(self):
        options = {}
        if self.version == "5":
            properties = Properties(PacketTypes.CONNECT)
            properties.SessionExpiryInterval = 0 if self.clean else 600
            options = {"clean_start": self.clean, "properties": properties}
        self.client.connect(*self.place, keepalive=30, **options)
        self.client.loop_start()
        reason = self.connected.get(timeout=PATIENCE)
        expect(not reason.is_failure, f"CONNACK says {reason}")
        return self

    def subscribe(self, topic, qos):
        self.client.subscribe(topic, qos)
        self.subscribed.get(timeout=PATIENCE)

    def publish(self, topic, payload, qos, retain=False):
        self.client.publish(topic, payload, qos, retain).wait_for_publish(PATIENCE)

    def receive(self):
        return self.inbox.get(timeout=PATIENCE)

    def disconnect(self):
        self.client.disconnect()
        self.client.loop_stop()

    def vanish(self):
        """Resets the connection, as a device does that loses its power and comes back."""
        self.client.loop_stop()
        raw = self.client.socket()
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        socket.socket(fileno=raw.detach()).close()


def expect(condition, otherwise):
    if not condition:
        sys.exit(f"FAILED: {otherwise}")


def quality_of_service(place, topic):
    publisher = Device(place, short_id()).connect()
    subscriber = Device(place, short_id()).connect()
    for qos in (0, 1, 2):
        subscriber.subscribe(f"{topic}/{qos}", qos)
        for payload in (b"small", bytes(range(256)) * 400, b""):
            publisher.publish(f"{topic}/{qos}", payload, qos)
            message = subscriber.receive()
            expect(message.payload == payload, f"QoS {qos}: {len(message.payload)} bytes for {len(payload)}")
            expect(message.qos == qos, f"QoS {message.qos} for {qos}")
    publisher.disconnect()
    subscriber.disconnect()


def retained(place, topic):
    publisher = Device(place, short_id()).connect()
    publisher.publish(topic, b"kept", 1, retain=True)
    subscriber = Device(place, short_id()).connect()
    subscriber.subscribe(topic, 1)
    message = subscriber.receive()
    expect(message.retain and message.payload == b"kept", "the retained message is another")
    publisher.publish(topic, b"", 1, retain=True)
    publisher.disconnect()
    subscriber.disconnect()


def will(place, topic):
    watcher = Device(place, short_id()).connect()
    watcher.subscribe(topic, 1)
    polite = Device(place, short_id(), will=topic).connect()
    polite.disconnect()
    name = short_id()
    Device(place, name, will=topic).connect().vanish()
    message = watcher.receive()
    expect(message.payload == f"will of {name}".encode(), f"not the Will of the one that vanished: {message.payload}")
    watcher.disconnect()


def persistent_session(place, topic):
    name = short_id()
    sleeper = Device(place, name, clean=False).connect()
    expect(not sleeper.session_present, "a session before there was one")
    sleeper.subscribe(topic, 1)
    sleeper.disconnect()

    publisher = Device(place, short_id()).connect()
    for number in range(10):
        publisher.publish(topic, str(number), 1)
    publisher.disconnect()

    sleeper = Device(place, name, clean=False).connect()
    # 3.1 has no such flag: its byte is reserved.
    expect(sleeper.session_present or sleeper.version == "3.1", "no session on coming back")
    received = [sleeper.receive().payload for _ in range(10)]
    expect(received == [str(number).encode() for number in range(10)], f"received {received}")
    sleeper.disconnect()
    forget = Device(place, name, clean=True).connect()
    forget.disconnect()


def short_id():
    """3.1 allows 23 characters."""
    return f"paho-{uuid.uuid4().hex[:12]}"


def main():
    if len(sys.argv) != 5 or sys.argv[4] not in PROTOCOLS:
        sys.exit(__doc__)
    place = sys.argv[1:5]
    topic = f"paho/{place[3]}/{uuid.uuid4().hex[:8]}"
    for scenario in (quality_of_service, retained, will, persistent_session):
        try:
            scenario(place, f"{topic}/{scenario.__name__}")
        except queue.Empty:
            sys.exit(f"FAILED: {scenario.__name__}: nothing came within {PATIENCE} s")
        print(f"{place[3]} {scenario.__name__}: ok", flush=True)


main()
