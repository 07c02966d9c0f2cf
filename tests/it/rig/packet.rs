//! MQTT packets by hand, from the specifications: the tests must not believe what the code under test believes.

/// A CONNECT, field by field.
#[derive(Clone, Copy)]
pub struct Connect<'a> {
    pub name: &'a str,
    pub level: u8,
    pub client_id: &'a [u8],
    pub clean: bool,
    pub keep_alive: u16,
    /// Topic and payload, QoS 1.
    pub will: Option<(&'a str, &'a [u8])>,
    pub username: Option<&'a str>,
    pub password: Option<&'a [u8]>,
    /// 5.0: the properties without their length.
    pub properties: &'a [u8],
}

impl<'a> Connect<'a> {
    /// Level 3, 4 or 5 with the name that belongs to it.
    pub fn level(level: u8, client_id: &'a str) -> Self {
        Self {
            name: if level == 3 { "MQIsdp" } else { "MQTT" },
            level,
            client_id: client_id.as_bytes(),
            clean: true,
            keep_alive: 0,
            will: None,
            username: None,
            password: None,
            properties: &[],
        }
    }

    /// MQTT 3.1.1.
    pub fn v311(client_id: &'a str) -> Self {
        Self::level(4, client_id)
    }

    /// MQTT 5.0.
    pub fn v5(client_id: &'a str) -> Self {
        Self::level(5, client_id)
    }

    pub fn bytes(&self) -> Vec<u8> {
        let is_v5 = self.level & 0x7F == 5;
        let mut body = text(self.name.as_bytes());
        body.push(self.level);
        body.push(self.flags());
        body.extend(self.keep_alive.to_be_bytes());
        if is_v5 {
            body.extend(properties(self.properties));
        }
        body.extend(text(self.client_id));
        if let Some((topic, payload)) = self.will {
            if is_v5 {
                body.push(0);
            }
            body.extend(text(topic.as_bytes()));
            body.extend(text(payload));
        }
        body.extend(
            self.username
                .map(|name| text(name.as_bytes()))
                .unwrap_or_default(),
        );
        body.extend(self.password.map(text).unwrap_or_default());
        packet(0x10, &body)
    }

    fn flags(&self) -> u8 {
        let bit = |set: bool, value: u8| if set { value } else { 0 };
        bit(self.clean, 0x02)
            | bit(self.will.is_some(), 0x04 | 0x08)
            | bit(self.password.is_some(), 0x40)
            | bit(self.username.is_some(), 0x80)
    }
}

/// CONNACK of 3.1 and 3.1.1.
pub fn connack_v3(code: u8) -> Vec<u8> {
    vec![0x20, 2, 0, code]
}

/// CONNACK of 5.0 without properties.
pub fn connack_v5(code: u8) -> Vec<u8> {
    vec![0x20, 3, 0, code, 0]
}

/// What a broker that is content says to this level.
pub fn accepted(level: u8) -> Vec<u8> {
    if level & 0x7F == 5 {
        connack_v5(0)
    } else {
        connack_v3(0)
    }
}

/// PUBLISH at QoS 0, or at QoS 1 with an identifier.
pub fn publish(level: u8, topic: &str, identifier: Option<u16>, payload: &[u8]) -> Vec<u8> {
    let mut body = text(topic.as_bytes());
    body.extend(identifier.map(u16::to_be_bytes).into_iter().flatten());
    if level == 5 {
        body.push(0);
    }
    body.extend(payload);
    packet(if identifier.is_some() { 0x32 } else { 0x30 }, &body)
}

/// SUBSCRIBE to one topic, identifier 1.
pub fn subscribe(level: u8, topic: &str, qos: u8) -> Vec<u8> {
    let mut body = vec![0, 1];
    if level == 5 {
        body.push(0);
    }
    body.extend(text(topic.as_bytes()));
    body.push(qos);
    packet(0x82, &body)
}

/// PUBACK for a PUBLISH at QoS 1.
pub fn puback(identifier: u16) -> Vec<u8> {
    packet(0x40, &identifier.to_be_bytes())
}

/// AUTH of 5.0 that goes on with `method` and `data`.
pub fn auth(method: &str, data: &[u8]) -> Vec<u8> {
    let mut inner = vec![0x15];
    inner.extend(text(method.as_bytes()));
    inner.push(0x16);
    inner.extend(text(data));
    let mut body = vec![0x18];
    body.extend(properties(&inner));
    packet(0xF0, &body)
}

pub const PINGREQ: [u8; 2] = [0xC0, 0];
pub const DISCONNECT: [u8; 2] = [0xE0, 0];

/// Topic, identifier and payload of a PUBLISH (without its properties in 5.0, which must be none).
pub fn published(level: u8, packet: &[u8]) -> (String, Option<u16>, Vec<u8>) {
    assert_eq!(packet[0] & 0xF0, 0x30, "no PUBLISH: {packet:02x?}");
    let header = 1 + packet[1..].iter().take_while(|byte| **byte & 0x80 != 0).count() + 1;
    let rest = &packet[header..];
    let length = usize::from(u16::from_be_bytes([rest[0], rest[1]]));
    let topic = String::from_utf8(rest[2..2 + length].to_vec()).unwrap();
    let mut rest = &rest[2 + length..];
    let identifier = (packet[0] & 0x06 != 0).then(|| u16::from_be_bytes([rest[0], rest[1]]));
    if identifier.is_some() {
        rest = &rest[2..];
    }
    if level == 5 {
        assert_eq!(rest[0], 0, "properties");
        rest = &rest[1..];
    }
    (topic, identifier, rest.to_vec())
}

/// Fixed header, Remaining Length, body.
pub fn packet(first: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![first];
    bytes.extend(variable_length(body.len()));
    bytes.extend(body);
    bytes
}

/// A length and that many bytes.
pub fn text(bytes: &[u8]) -> Vec<u8> {
    let length = u16::try_from(bytes.len()).unwrap();
    let mut all = length.to_be_bytes().to_vec();
    all.extend(bytes);
    all
}

/// 5.0: a length and that many bytes of properties.
pub fn properties(inner: &[u8]) -> Vec<u8> {
    let mut all = variable_length(inner.len());
    all.extend(inner);
    all
}

fn variable_length(mut length: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    loop {
        let seven = (length % 128) as u8;
        length /= 128;
        bytes.push(if length > 0 { seven | 0x80 } else { seven });
        if length == 0 {
            return bytes;
        }
    }
}
