"""Why a service cannot be reached where trying again will not help: gRPC says "unavailable" to all of it."""

from __future__ import annotations

import os
import pathlib
import socket
import ssl

import grpc

from lorry import errors
from lorry.credentials import Credentials, host_and_port

# A handshake with a service that lives takes milliseconds; this is for a diagnosis and never for a call.
_LOOK_S = 3.0
# A service that is just being stopped hangs up too; one that does so again and again means it.
_HANGUPS_MIN = 3
# The authorities that gRPC trusts where it is told none.
_ROOTS = pathlib.Path(grpc.__file__).parent / "_cython" / "_credentials" / "roots.pem"


def check_tls(address: str, credentials: Credentials) -> None:
    """Returns where TLS is fine, or nobody answers, which may change.

    Raises:
        LorryError: TLS_FAILED: one side speaks TLS and the other does not, or they do not trust each other.
    """
    host, port = host_and_port(address)
    if not host:
        return
    try:
        if credentials.tls and all(_hangs_up(host, port, credentials) for _ in range(_HANGUPS_MIN)):
            raise _failure(f"{address} hangs up after the handshake: " + _what_is_asked(credentials))
        if not credentials.tls and _speaks_tls(host, port):
            raise _failure(f"{address} speaks TLS: give ca_file (LORRY_CA_FILE), the authority that signed its certificate")
    except ssl.SSLCertVerificationError as error:
        raise _failure(f"the certificate of {address} is not trusted: {error.verify_message}. {_advice(error, host)}") \
            from None
    except ssl.SSLError as error:
        raise _failure(f"no TLS with {address}: {_words(error)}") from None
    except OSError:
        return


def _hangs_up(host: str, port: int, credentials: Credentials) -> bool:
    """TLS 1.3 ends the handshake before the client's certificate is judged, and gRPC then hangs up without a word."""
    context = _judging_as_grpc(credentials.ca_file)
    if credentials.cert_file is not None and credentials.key_file is not None:
        context.load_cert_chain(credentials.cert_file, credentials.key_file)
    with _connect(context, host, port) as shaken:
        try:
            return shaken.recv(1) == b""  # an HTTP/2 server speaks first
        except ConnectionError:
            return True


def _judging_as_grpc(ca_file: str | None) -> ssl.SSLContext:
    """What gRPC can use must not be called a failure: Python's own default trusts others, and is stricter from 3.13 on."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_verify_locations(ca_file or os.environ.get("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH") or _ROOTS)
    return context


def _speaks_tls(host: str, port: int) -> bool:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        _connect(context, host, port).close()
        return True
    except OSError:
        return False


def _connect(context: ssl.SSLContext, host: str, port: int) -> ssl.SSLSocket:
    context.set_alpn_protocols(["h2"])
    return context.wrap_socket(socket.create_connection((host, port), _LOOK_S), server_hostname=host)


def _what_is_asked(credentials: Credentials) -> str:
    if credentials.cert_file is None:
        return ("it seems to ask for a client certificate; give cert_file and key_file (LORRY_CERT_FILE, LORRY_KEY_FILE)")
    return f"it seems not to trust this client's certificate, {credentials.cert_file}"


def _advice(error: ssl.SSLCertVerificationError, host: str) -> str:
    if "mismatch" in error.verify_message:
        return f"Dial a name that the certificate holds, or add {host} to its subject alternative names."
    if "expired" in error.verify_message:
        return "Renew it; the service reads the new file within a minute."
    if "not yet valid" in error.verify_message:
        return "Compare the clocks of both machines."
    return "Give the authority that signed it as ca_file (LORRY_CA_FILE)."


def _words(error: ssl.SSLError) -> str:
    reason = str(error.reason or error)
    if "WRONG_VERSION_NUMBER" in reason or "RECORD_LAYER" in reason:
        return "it speaks plaintext; leave ca_file, cert_file and key_file out"
    return reason.lower().replace("_", " ")


def _failure(message: str) -> errors.LorryError:
    return errors.LorryError(message, "TLS_FAILED", "FAILED_PRECONDITION")
