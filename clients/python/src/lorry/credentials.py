"""What this process shows to the services and whom it trusts: a bearer token, an authority, a client certificate."""

from __future__ import annotations

import ipaddress
import logging
import os
import warnings
from dataclasses import dataclass, field

import grpc

from lorry import errors

_log = logging.getLogger("lorry")


class InsecureWarning(UserWarning):
    """A token goes over the network unencrypted: whoever reads it can do all that it allows."""


@dataclass(frozen=True)
class Credentials:
    """Where the secrets lie. Files are PEM and hold what their names say; any of the three turns TLS on.

    Attributes:
        token: bearer token.
        token_file: a file with one; read again at every call, so that a rotated token needs no restart. While it is gone or empty, as
            it may be for a moment when it is replaced, or holds anything else than one token, the token of before is shown.
        ca_file: the authority that signed the services' certificates; None: those that gRPC ships with.
        cert_file, key_file: this client's certificate and key, where the services ask for them (mTLS).
    """

    token: str | None = None
    token_file: str | None = None
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    _shown: list[str] = field(default_factory=list, init=False, repr=False, compare=False)  # the last that was in token_file
    _complaints: list[str] = field(default_factory=list, init=False, repr=False, compare=False)  # what was said of token_file as it is

    def __post_init__(self) -> None:
        if (self.cert_file is None) != (self.key_file is None):
            raise errors.LorryError("a client certificate needs both cert_file and key_file "
                                    "(LORRY_CERT_FILE, LORRY_KEY_FILE)", "ARGUMENT_INVALID", "INVALID_ARGUMENT")

    @staticmethod
    def find(token: str | None, token_file: str | None, ca_file: str | None, cert_file: str | None,
             key_file: str | None) -> Credentials:
        """Each from its argument, else from the environment: ``LORRY_TOKEN``, ``LORRY_TOKEN_FILE``, ``LORRY_CA_FILE``,
        ``LORRY_CERT_FILE``, ``LORRY_KEY_FILE``. A token goes before a token file.

        Raises:
            LorryError: ARGUMENT_INVALID: a certificate without its key, or the reverse.
        """
        if token is None and token_file is None:
            token, token_file = os.environ.get("LORRY_TOKEN"), os.environ.get("LORRY_TOKEN_FILE")
        return Credentials(token or None, token_file or None, ca_file or os.environ.get("LORRY_CA_FILE") or None,
                           cert_file or os.environ.get("LORRY_CERT_FILE") or None,
                           key_file or os.environ.get("LORRY_KEY_FILE") or None)

    @property
    def tls(self) -> bool:
        return self.ca_file is not None or self.cert_file is not None

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """For a TLS channel. Raises LorryError: ARGUMENT_INVALID names a file that cannot be read."""
        parts = [_read(f) if f is not None else None for f in (self.ca_file, self.key_file, self.cert_file)]
        return grpc.ssl_channel_credentials(*parts)

    def files_of_tls(self) -> list[tuple[int, int]]:
        """Tells files that were replaced from those of before."""
        files = [file for file in (self.ca_file, self.cert_file, self.key_file) if file is not None and os.path.exists(file)]
        return [(told.st_mtime_ns, told.st_ino) for told in map(os.stat, files)]

    def metadata(self) -> list[tuple[str, str]]:
        """Call metadata that carries the token.

        Raises:
            LorryError: ARGUMENT_INVALID: what was given is no token, or the token file holds none and never did.
        """
        token = self._bearer()
        return [("authorization", f"Bearer {token}")] if token else []

    def as_fields(self) -> dict[str, str]:
        """For a program that is to be told; only what is set. Raises as :meth:`metadata`."""
        fields = {"token": self._bearer(), "ca_file": self.ca_file, "cert_file": self.cert_file, "key_file": self.key_file}
        return {name: value for name, value in fields.items() if value}

    def _bearer(self) -> str | None:
        if self.token is not None:
            return _one_token(self.token.encode(errors="surrogatepass"), "what was given as the token")
        if self.token_file is None:
            return None
        try:
            token = _one_token(_read(self.token_file), self.token_file)
            self._complaints.clear()
        except errors.LorryError as error:
            if not self._shown:
                raise
            if error.message not in self._complaints:
                _log.error("%s; until that is mended, the token that was read before is shown", error.message)
            self._complaints[:] = [error.message]
            token = ""
        if token:
            self._shown[:] = [token]
        return self._shown[0] if self._shown else None

    def warn_if_in_clear(self, address: str) -> None:
        """A token that leaves the machine unencrypted is never sent without a word."""
        if self.tls or (self.token is None and self.token_file is None) or is_loopback(address):
            return
        warnings.warn(f"the token goes to {address} unencrypted: give ca_file (LORRY_CA_FILE) where the service has TLS",
                      InsecureWarning, stacklevel=2)


def host_and_port(address: str) -> tuple[str, int]:
    """Of ``host:port`` and ``dns:///host:port``; ("", 0) of what is no such address, a Unix socket's for instance."""
    rest = address.removeprefix("dns:///").removeprefix("ipv4:").removeprefix("ipv6:")
    host, colon, port = rest.rpartition(":")
    return (host.strip("[]"), int(port)) if colon and port.isdecimal() and "/" not in host else ("", 0)


def is_loopback(address: str) -> bool:
    """Whether what is sent there stays on this machine."""
    host, _ = host_and_port(address)
    if host in ("", "localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _one_token(text: bytes, origin: str) -> str:
    """Never quotes it, as gRPC does that is given such a header."""
    token = text.strip()
    if not all(0x21 <= byte <= 0x7e for byte in token):
        raise errors.LorryError(f"{origin} is not one token: a single word of ASCII characters, and nothing else beside it",
                                "ARGUMENT_INVALID", "INVALID_ARGUMENT")
    return token.decode()


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise errors.LorryError(f"{path} cannot be read: {error.strerror}", "ARGUMENT_INVALID",
                                "INVALID_ARGUMENT") from None
