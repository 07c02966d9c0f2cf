"""A device that keeps its TLS session, with the ssl module of Python.

usage: ssl_session.py play CA_FILE VERSION      (VERSION is 1.2 or 1.3)
           reads the port of a server from each line of stdin, connects there with the session of the last time, sends a CONNECT,
           waits for four bytes of answer, and prints "reused" or "full"
       ssl_session.py tamper SESSION_FILE
           flips a bit in the ticket of a session that `openssl s_client -sess_out` has written
"""

import base64
import re
import socket
import ssl
import sys

PATIENCE = 15
CONNECT = bytes.fromhex("100e 0004 4d515454 04 02 003c 0002 7079")
VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}


def play(ca_file, version):
    context = ssl.create_default_context(cafile=ca_file)
    context.minimum_version = context.maximum_version = VERSIONS[version]
    session = None
    for line in sys.stdin:
        tcp = socket.create_connection(("127.0.0.1", int(line)), PATIENCE)
        with context.wrap_socket(tcp, server_hostname="localhost", session=session) as tls:
            tls.sendall(CONNECT)
            answer = tls.recv(4)
            assert answer == bytes.fromhex("20020000"), answer
            print("reused" if tls.session_reused else "full", flush=True)
            session = tls.session


def elements(der):
    """The elements of a DER value, as (tag, start of the content, end)."""
    at = 0
    while at < len(der):
        tag, length = der[at], der[at + 1]
        start = at + 2
        if length & 0x80:
            start += length & 0x7F
            length = int.from_bytes(der[at + 2 : start], "big")
        yield tag, start, start + length
        at = start + length


def tamper(path):
    with open(path, encoding="ascii") as file:
        text = file.read()
    der = bytearray(base64.b64decode(re.search("SESSION PARAMETERS-----(.*?)-----END", text, re.S)[1]))
    ((_, outer, _),) = elements(der)
    # [10] EXPLICIT OCTET STRING: the ticket (OpenSSL, ssl/ssl_asn1.c).
    ((start, end),) = [(outer + start, outer + end) for tag, start, end in elements(der[outer:]) if tag == 0xAA]
    assert end - start > 50, "no ticket in the session"
    der[end - 1] ^= 1
    body = base64.encodebytes(bytes(der)).decode()
    with open(path, "w", encoding="ascii") as file:
        file.write(f"-----BEGIN SSL SESSION PARAMETERS-----\n{body}-----END SSL SESSION PARAMETERS-----\n")


if __name__ == "__main__":
    {"play": play, "tamper": tamper}[sys.argv[1]](*sys.argv[2:])
