"""A certificate for one link, known by its hash alone."""

from __future__ import annotations

import hashlib
import ssl
import subprocess
import tempfile
from dataclasses import dataclass

from worker.links.errors import NoCertificate

_MAKE_S = 10
# No configuration file: a minimal host has none, and another one's settings are not wanted.
_COMMAND = (
    *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
    *("-nodes", "-keyout", "-", "-out", "-", "-days", "3650", "-subj", "/CN=stageline"),
    *("-config", "/dev/null"),
)


@dataclass(frozen=True, slots=True)
class Certificate:
    """What the accepting end of a link shows.

    Attributes:
        context: of the accepting end.
        sha256: of the certificate, in hexadecimal; the other end accepts no other one.
    """

    context: ssl.SSLContext
    sha256: str


def make() -> Certificate:
    """Return a new certificate; nobody else has its key, and nothing keeps it.

    Raises:
        NoCertificate: the program is missing or failed.
    """
    try:
        made = subprocess.run(_COMMAND, capture_output=True, timeout=_MAKE_S, check=True)
    except subprocess.CalledProcessError as error:
        last = error.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise NoCertificate(f"openssl made no certificate: {last}") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoCertificate(f"openssl made no certificate: {error}") from None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # The other end only writes; what it has not read would reset the connection at its end.
    context.num_tickets = 0
    text = made.stdout.decode("ascii")
    with tempfile.NamedTemporaryFile("w") as file:  # mode 0600; only a file can be loaded
        file.write(text)
        file.flush()
        context.load_cert_chain(file.name)
    head = text.index("-----BEGIN CERTIFICATE-----")
    der = ssl.PEM_cert_to_DER_cert(text[head:].strip())
    return Certificate(context, hashlib.sha256(der).hexdigest())
